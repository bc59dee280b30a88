# SPDX-License-Identifier: Apache-2.0

# The kernel of a code context of bash. boxd runs it in the box, as any program of it: bash -c PROGRAM bash NONCE 0. It tells of
# itself as python.py does, each event in one frame. A request is a line: its length, and after a space words as this shell reads
# them: run, an id, the code, and names and values of variables; or sync and an id.
#
# Where code exits or is interrupted there is no way back to here: another bash takes over, with all variables and functions.

if [[ ${3-} ]]; then
  IFS= builtin read -r -d '' -u "$3" __boxd_state
  eval "exec $3<&-"
  { eval "$__boxd_state"; } 2>/dev/null # some variables are read-only
fi
__boxd_nonce=$1 __boxd_count=$2 __boxd_busy= __boxd_state=
exec {__boxd_in}<&0 {__boxd_out}>&1 {__boxd_err}>&2 </dev/null
set --

__boxd_frame() { builtin printf '\x1e%s!{"e":"%s","id":"%s"%s}\n' "$__boxd_nonce" "$1" "$__boxd_id" "${2-}"; }

__boxd_both() {
  __boxd_frame "$@" >&"$__boxd_out"
  __boxd_frame "$@" >&"$__boxd_err"
}

__boxd_failed() { __boxd_frame error ",\"name\":\"$1\",\"value\":\"$2\",\"traceback\":\"$1: $2\"" >&"$__boxd_out"; }

# __boxd_end puts variables back, and tells of the end of an execution.
__boxd_end() {
  local i
  for i in "${!__boxd_names[@]}"; do
    if [[ ${__boxd_had[i]} ]]; then
      builtin export "${__boxd_names[i]}=${__boxd_olds[i]}"
    else
      builtin unset "${__boxd_names[i]}"
    fi
  done
  __boxd_busy=
  __boxd_both end
}

# __boxd_again ends an execution and has another bash go on.
__boxd_again() {
  { set +euxvn; } 2>/dev/null
  [[ $BASHPID == "$__boxd_pid" && $__boxd_busy ]] || return 0
  builtin trap - EXIT
  builtin trap '' INT
  [[ $1 == 0 ]] || __boxd_failed "$2" "$3"
  __boxd_end
  exec {__boxd_kept}< <(builtin declare -p; builtin declare -f; builtin alias -p; builtin shopt -p)
  builtin trap - INT # what is ignored here, that other bash could not use
  exec bash -c "$BASH_EXECUTION_STRING" bash "$__boxd_nonce" "$__boxd_count" "$__boxd_kept" \
    <&"$__boxd_in" >&"$__boxd_out" 2>&"$__boxd_err" {__boxd_in}<&- {__boxd_out}>&- {__boxd_err}>&-
}

__boxd_pid=$BASHPID
builtin trap '' INT # which would end the reading of a request, and is for code alone
while IFS= builtin read -r -u "$__boxd_in" __boxd_line; do
  __boxd_words=${__boxd_line#* }
  [[ ${__boxd_line%% *} == "${#__boxd_words}" ]] || continue # the beginning of one whose sender has gone
  eval "__boxd_words=($__boxd_words)"
  __boxd_id=${__boxd_words[1]}
  case ${__boxd_words[0]} in
  sync) __boxd_both synced ;;
  run)
    exec </dev/null >&"$__boxd_out" 2>&"$__boxd_err"
    __boxd_both begin ",\"count\":$((++__boxd_count))"
    __boxd_names=() __boxd_olds=() __boxd_had=()
    for ((__boxd_i = 3; __boxd_i < ${#__boxd_words[@]}; __boxd_i += 2)); do
      __boxd_name=${__boxd_words[__boxd_i]}
      [[ $__boxd_name =~ ^[A-Za-z_][A-Za-z0-9_]*$ ]] || continue
      __boxd_names+=("$__boxd_name") __boxd_olds+=("${!__boxd_name-}") __boxd_had+=("${!__boxd_name+1}")
      builtin export "$__boxd_name=${__boxd_words[__boxd_i + 1]}"
    done
    __boxd_code=${__boxd_words[2]} __boxd_line= __boxd_words=() __boxd_busy=1
    builtin trap '__boxd_status=$?; __boxd_again "$__boxd_status" ExitStatus "exit status $__boxd_status"' EXIT
    builtin trap '__boxd_again 130 KeyboardInterrupt ""' INT
    for __boxd_i in 1; do # which the code may break
      eval "$__boxd_code"
    done
    { __boxd_status=$?; set +euxvn; } 2>/dev/null
    builtin trap - EXIT
    builtin trap '' INT
    __boxd_busy=
    [[ $__boxd_status == 0 ]] || __boxd_failed ExitStatus "exit status $__boxd_status"
    __boxd_end
    ;;
  esac
done
