_marft() {
  local now="$${COMP_WORDS[COMP_CWORD]}" before="$${COMP_WORDS[COMP_CWORD-1]}" words=""
  local command="$${COMP_WORDS[1]}"
  [ "$$command" = bench ] && [ "$$COMP_CWORD" -gt 2 ] && command="bench $${COMP_WORDS[2]}"
  [ "$$COMP_CWORD" -eq 1 ] && command=""
  case "$$before" in
$options
  esac
  [ -z "$$words" ] && case "$$command" in
$commands
  esac
  COMPREPLY=($$(compgen -W "$$words" -- "$$now"))
  [ $${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($$(compgen -f -- "$$now"))
}
complete -F _marft marft
