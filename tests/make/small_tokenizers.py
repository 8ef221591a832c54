#!/usr/bin/env python3
"""Small vocabularies of every kind, and what Hugging Face's tokenizers makes of many strings with them:
tests/data/tokenizers/NAME.json (a tokenizer.json each), cases.json and settings.json.

  pip install tokenizers==0.23.3 && python3 tests/make/small_tokenizers.py

cases.json: {"texts": [text], "NAME": [[ids], ...]} with special tokens added and parsed; "NAME decoded" likewise, without
special tokens.
settings.json: [{"name", "tokenizer": a tokenizer.json, "cases": [[text, [ids]], ...]}], settings that change ids.
"""
import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"
SIZE = 480

TEXT = """The quick brown fox jumps over the lazy dog, and the dog's 12 friends don't mind: they've seen 3,456 foxes.
She said “I'll be there at 10:30” — and she was. We're told it's 21.5 °C; he'd guess 1/2 of 99% isn't much...
Attention weighs what each word sees of the words before it; the weights of a row sum to one, in all of its heads.
def mean(values):
    total = sum(values)  # of all
    return total / len(values) if values else 0.0

Der Fuß des Bären über dem Öl; où est le café déjà vu à Noël? ¿Dónde está el niño? Łódź, Kraków, İstanbul, Ærø.
Быстрая лиса прыгает через ленивую собаку. Η γρήγορη αλεπού. השועל המהיר קפץ מעל הכלב. الثعلب السريع يقفز.
数学は美しい。 人工知能と言語。 빠른 여우가 게으른 개를 뛰어넘는다. तेज़ लोमड़ी कूदती है। สุนัขจิ้งจอก กระโดด
www.example.org/path?x=1&y=2   {"key": [1, 2, 3]}\t<b>bold</b>\tend
"""

LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")

HAND = ["", " ", "  ", "   \n", "\n", "\r\n \r\n", "a", " a", "a ", "  a  b ", "don't DON'T we'Ve 's 'S 'ſ '", "''ll 'x",
        "1234567 12 3", "٣٤٥ Ⅻ ½ ²³ 一二", "x1y22z333", "!!! ?!\n\n...", "\t\tx\t\n\n y", "\x00\x01\x7f\x80\x85\xa0",
        "e\u0301 é e\u0323\u0301 e\u0301\u0323 \u0301x", "ﬁ Ǆ ǅ İ ı ß ẞ Å Å", "ς Σ ΣΑΣ", "\u200bzero\u200dwidth\ufeff",
        "\u2028\u2029\u3000x\u1680y", "👩\u200d👩\u200d👧 🏳️\u200d🌈 😀", "한국어 각 \u1100\u1161\u11a8", "数学は美しい。",
        "﷽ مرحبا שלום נקודה־ נְקֻדָּה", "नमस्ते दुनिया ไทย", "▁ ▁▁x <0x41> <s>x</s>", "<|end|>x<|end|><|en", "[CLS] [MASK][UNK] a",
        "a" * 120, "ab" * 70, "\n" * 9, " " * 9 + "x", "\U0010ffff\ue000\ufffd", "a.b,c;d:e!f?g-h_i~j`k^l$m+n<o=p>q|r", "tail\n "]
SPANS = [(0x20, 0x7e)] * 5 + [(0, 0x1f), (0x7f, 0x17f), (0x300, 0x345), (0x370, 0x3ff), (0x410, 0x44f), (0x5d0, 0x5ea),
                              (0x627, 0x64a), (0x905, 0x939), (0xe01, 0xe3a), (0x2010, 0x2044), (0x20a0, 0x20b9),
                              (0x2150, 0x218b), (0x3041, 0x3096), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x1f600, 0x1f64f)]


def random_texts(count):
    rng = random.Random(7)
    words = TEXT.split() + ["\n", "\n\n", "\t", "  ", "   ", "'s", "'LL", "<|end|>", "</s>", "[SEP]", "</b>", "▁"]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 7)):
            span = rng.choice(SPANS)
            parts.append(rng.choice([rng.choice(words), rng.choice(words) + " ", chr(rng.randint(*span)) * rng.randint(1, 3),
                                     "".join(chr(rng.randint(*span)) for _ in range(rng.randint(1, 5))), " "]))
        texts.append("".join(parts))
    return texts


def byte_level(pre, normalizer=None, alphabet=True):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=SIZE, show_progress=False, special_tokens=["<s>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if alphabet else []))
    tokenizer.add_tokens([AddedToken("</b>", normalized=False)])
    return json.loads(tokenizer.to_str())


def split_by(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sentence_piece(normalizer):
    spelled = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=SIZE + 256, show_progress=False, special_tokens=["<unk>", "<s>", "</s>"] + spelled))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("</b>", normalized=False)])
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = None
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = [t for t in made["added_tokens"] if t["content"] not in spelled]
    return made


def word_piece(lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator([TEXT], trainers.WordPieceTrainer(vocab_size=SIZE, show_progress=False,
                                                                    special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]",
                                                             special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return json.loads(tokenizer.to_str())


def all_kinds():
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made = {"gpt2": byte_level(bytes_alone),
            "smollm": byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_alone]),
                                 alphabet=False),
            "llama3": byte_level(split_by(LLAMA)),
            "qwen2": byte_level(split_by(LLAMA.replace("{1,3}", "")), normalizers.NFC()),
            "gemma": sentence_piece(normalizers.Replace(" ", "▁")),
            "llama2": sentence_piece(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
            "metaspace": sentence_piece(None),
            "bert": word_piece(True),
            "bert_cased": word_piece(False)}
    made["llama3"]["model"]["ignore_merges"] = True
    made["llama3"]["post_processor"] = json.loads(sentence_piece_template())
    made["gemma"]["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                                      "invert": False}
    made["metaspace"]["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                          "split": False}
    for name in ("llama2", "metaspace"):
        made[name]["decoder"]["decoders"].append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return made


def sentence_piece_template():
    return json.dumps({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing",
         "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                  {"Sequence": {"id": "B", "type_id": 1}}],
         "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}]})


def added(first, *tokens):
    """Entries of "added_tokens" from id `first`: "text", or ("text", {flags})."""
    entries = []
    for i, token in enumerate(tokens):
        text, flags = (token, {}) if isinstance(token, str) else token
        entries.append({"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
                        "normalized": True, "special": False} | flags)
    return entries


def with_model(model, tokens=(), **parts):
    return {"version": "1.0", "added_tokens": added(len(model["vocab"]), *tokens), "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": model} | parts


def ids_of(pieces):
    return {piece: i for i, piece in enumerate(pieces)}


def merging(pieces, merges, **settings):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": ids_of(pieces), "merges": merges} | settings


def words(tokens, **normalizer):
    pieces = ["[UNK]", "new", "##token", "##s", "x", "##x", "foo", "bar", "e", "数"]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
             "max_input_chars_per_word": 100, "vocab": ids_of(pieces)}
    steps = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
             "lowercase": True} | normalizer
    return with_model(model, tokens, normalizer=steps, pre_tokenizer={"type": "BertPreTokenizer"})


def spelled_spaces(tokens=(), form="replace", **settings):
    """SentencePiece's BPE: the letters a, b and c, "ab" and "▁a"."""
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": form, "split": False}
    parts = {"replace": {"normalizer": replace},
             "prepend": {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace]}}}
    model = merging(["<unk>", "▁", "a", "b", "c", "ab", "▁a", "▁ab", "abc"], ["a b", "▁ a", "▁a b"],
                    **{"unk_token": "<unk>", "fuse_unk": True} | settings)
    return with_model(model, tokens, **parts.get(form, {"pre_tokenizer": metaspace}))


def bytes_spelled(tokens=(), normalizer=None, **settings):
    pieces = ["<unk>", "a", "b", "e", "x", "<", ">", "Ġ", "Ã", "©", "ab", "xa"]
    return with_model(merging(pieces, ["a b", "x a"], **settings), tokens, normalizer=normalizer,
                      pre_tokenizer=json.loads(byte_level_step()))


def byte_level_step():
    return json.dumps({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True})


def settings():
    """(name, tokenizer.json, texts)"""
    raw, special = {"normalized": False}, {"special": True}
    some = ["NewToken", "Foo Bar", ("<X>", raw), ("[Ctl]", special), "É", "数x"]
    word_texts = ["newtoken", "xNEWTOKENs", "foo bar FOO  BAR Foo\tBar", "<x><X>x", "[CTL] [Ctl]x", "e É é e\u0301",
                  "数x 数 x", "x\x01foo\u00a0bar"]
    spaced = ["foo", "a b", (" c", raw), ("<s>", special)]
    space_texts = ["foo", " foo", "a foo", "foofoo b", "a b", "ba b", "a▁b", "▁foo▁a b", "b c c", "<s>", "a<s>", "a <s>b",
                   "<s>foo", " c<s>foo", "foo foo  foo", "b"]
    unknown_texts = ["a?b", "??a??", "?", "a<unk>?", "é?a é", "a b ?? ab"]
    return ([("words, lower case", words(some), word_texts),
             ("words, case and accents", words(some, lowercase=False), word_texts),
             ("words, lower case with accents", words(some, strip_accents=False), word_texts)]
            + [(f"spaces, {form}", spelled_spaces(spaced, form), space_texts)
               for form in ("replace", "prepend", "first", "never")]
            + [("composed", bytes_spelled(["é", "<b>", ("<e>", raw)], {"type": "NFC"}),
                ["é", "e\u0301x", "<b>a", "<b>\u0338a", "<e>", "<e>\u0338", "xa<b>b"]),
               ("in turn", bytes_spelled([("a b", raw), ("<b>", special), "b><", ("xa", {"id": 11})]),
                ["xa", "xa b", "a xa b", "xxa a b", "<b>", "<b><b>", "a b><b>"])]
            + [(f"unknown bytes, {name}", bytes_spelled(**chosen), unknown_texts)
               for name, chosen in (("dropped", {}), ("each", {"unk_token": "<unk>"}),
                                    ("fused", {"unk_token": "<unk>", "fuse_unk": True}))]
            + [(f"unknown characters, {name}", spelled_spaces([("<unk>", special | raw | {"id": 0})], **chosen), unknown_texts)
               for name, chosen in (("each", {"fuse_unk": False}), ("fused", {}), ("dropped", {"unk_token": None}),
                                    ("no bytes", {"byte_fallback": True, "fuse_unk": False}))]
            + [(f"whole runs, {form}", spelled_spaces([("<s>", special | raw)], form, ignore_merges=True),
                ["abc", " ab", "abc ", "abca", "ab<s>abc<s>c", "<unk>"]) for form in ("replace", "prepend", "never")])


def settings_json():
    made = []
    for name, tokenizer, texts in settings():
        known = Tokenizer.from_str(json.dumps(tokenizer))
        made.append({"name": name, "tokenizer": tokenizer, "cases": [[text, known.encode(text).ids] for text in texts]})
    return made


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    texts = HAND + random_texts(110)
    cases = {"texts": texts}
    for name, made in all_kinds().items():
        write(FOLDER / f"{name}.json", made)
        tokenizer = Tokenizer.from_str(json.dumps(made))
        cases[name] = [tokenizer.encode(text).ids for text in texts]
        cases[name + " decoded"] = [tokenizer.decode(ids, skip_special_tokens=True) for ids in cases[name]]
    write(FOLDER / "cases.json", cases)
    write(FOLDER / "settings.json", settings_json())


if __name__ == "__main__":
    main()
