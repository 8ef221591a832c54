// Tokens as people read them.

/** A token of the data is a string, or {bytes: "D9"} where its bytes alone are no text. */
class Tokens {
  constructor(list) {
    this.list = list;
    this.length = list.length;
  }

  /** Signs for what has no shape of its own; bytes as ⟨D9⟩. `lead`: what stands for a leading space. */
  full(i, lead = "·") {
    const token = this.list[i];
    if (typeof token !== "string") return `⟨${token.bytes.match(/../g).join(" ")}⟩`;
    if (token === "") return "∅";
    return visibleSigns(token.startsWith(" ") && token.length > 1 && token[1] !== " "
      ? lead + token.slice(1) : token);
  }

  /** At most nine signs, for labels. */
  short(i) {
    const signs = Array.from(this.full(i));
    return signs.length > 9 ? signs.slice(0, 8).join("") + "…" : signs.join("");
  }

  /** "78 on". */
  named(i) {
    return `${i} ${this.full(i)}`;
  }

  isText(i) {
    return typeof this.list[i] === "string";
  }

  /** First index after the bytes that together make one or more characters from token i on, and the characters, with
      signs for those that have no shape or would turn the text around them. */
  characterFrom(i) {
    const bytes = [];
    for (let end = i; end < this.length && !this.isText(end) && end - i < 16; end++) {
      bytes.push(...this.list[end].bytes.match(/../g).map((b) => parseInt(b, 16)));
      try {
        const decoder = new TextDecoder("utf-8", {fatal: true, ignoreBOM: true});
        return {end: end + 1, text: visibleSigns(decoder.decode(new Uint8Array(bytes)))};
      } catch {
        continue;  // more bytes are needed
      }
    }
    return {end: i + 1, text: ""};
  }
}

function visibleSigns(text) {
  return text.replace(/\r\n|\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "␣")
    .replace(/[\u0000-\u001f\u007f-\u009f]/g, (c) => `⟨${c.charCodeAt(0).toString(16).padStart(2, "0").toUpperCase()}⟩`)
    .replace(/[\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
      (c) => `⟨U+${c.charCodeAt(0).toString(16).padStart(4, "0").toUpperCase()}⟩`);
}

/** Lines of words of tokens: [{words: [{space, tokens: [i]} or {space, character, tokens}], }]. Words never break. */
function proseLines(tokens) {
  const lines = [{words: []}];
  let word = null;
  for (let i = 0; i < tokens.length; i++) {
    if (!tokens.isText(i)) {
      const {end, text} = tokens.characterFrom(i);
      const indices = Array.from({length: end - i}, (_, n) => i + n);
      word = {space: false, character: text, tokens: indices};
      lines.at(-1).words.push(word);
      word = null;
      i = end - 1;
      continue;
    }
    const text = tokens.list[i];
    const starts = /^\s/.test(text) || word === null || /\s$/.test(tokens.isText(i - 1) ? tokens.list[i - 1] : "x");
    if (starts || !joins(text, tokens.list[i - 1])) {
      word = {space: /^ \S/.test(text), tokens: []};
      lines.at(-1).words.push(word);
    }
    word.tokens.push(i);
    if (/\n/.test(text)) {
      lines.push({words: []});
      word = null;
    }
  }
  if (lines.at(-1).words.length === 0 && lines.length > 1) lines.pop();
  return lines;
}

/** Whether two pieces hang together: scripts without spaces may break between tokens, words may not. */
function joins(text, before) {
  const wide = /[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]/;
  return !(wide.test(text[0]) || wide.test(before.at(-1)));
}
