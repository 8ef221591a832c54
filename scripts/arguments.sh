# What the scripts say about their arguments; sourced by them.

# Found while the folder is the one that the script was called from.
script=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/$(basename "$0")

# The comment at the script's head, which says how to call it.
usage() { sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$script"; }

# refuse FOUND EXPECTED
refuse() {
  echo "$(basename "$0"): found '$1', expected $2" >&2
  usage >&2
  exit 2
}

# options EXPECTED [ARGUMENT...]: help, where that is asked for; a first argument that looks like an option is refused.
options() {
  case "${2:-}" in
    -h | --help) usage; exit 0 ;;
    -*) refuse "$2" "$1" ;;
  esac
}
