"""completion: print the script that makes a shell complete torpor commands."""

from enum import StrEnum
from typing import Annotated

import typer

from torpor.cli.output.console import show_bytes


class CompletionShell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Without candidates each script falls back to file names.
SCRIPTS = {
    CompletionShell.BASH: """\
# eval "$(torpor completion bash)" in ~/.bashrc
_torpor() {
    local word
    COMPREPLY=()
    while IFS=$'\\t' read -r word _; do
        COMPREPLY+=("$word")
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _torpor torpor
""",
    CompletionShell.ZSH: """\
#compdef torpor
# eval "$(torpor completion zsh)" in ~/.zshrc after compinit, or as a file _torpor in a folder of $fpath
_torpor() {
    local -a found
    local line
    for line in "${(@f)$("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] && found+=("${line/$'\\t'/:}")
    done
    if (( ${#found} )); then
        _describe 'torpor' found
    else
        _files
    fi
}
if [[ ${funcstack[1]} == _torpor ]]; then
    _torpor "$@"
else
    compdef _torpor torpor
fi
""",
    CompletionShell.FISH: """\
# torpor completion fish > ~/.config/fish/completions/torpor.fish
function __torpor_complete
    set -l before (commandline --tokenize --cut-at-cursor --current-process)
    set -l typed (commandline --current-token --cut-at-cursor)
    set -l program $before[1]
    set --erase before[1]
    set -l found ($program __complete $before "$typed" 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path "$typed"
    end
end
complete --command torpor --no-files --arguments '(__torpor_complete)'
""",
}


def completion(
    shell: Annotated[CompletionShell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
) -> None:
    """Print the completion script for your shell."""
    show_bytes(SCRIPTS[shell].encode())
