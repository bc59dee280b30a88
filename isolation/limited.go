// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"strconv"
	"strings"
)

// LimitedCommand is the first argument that makes boxfiles execute a program with resource limits of its own: programs inherit
// theirs from PID 1 of the box, which cannot give one program others than it has itself. The limits follow, and then the program.
const LimitedCommand = "limited"

// LimitedAhead is how many arguments precede the program's.
const LimitedAhead = 3

// LimitedArgv returns what to execute for a program with limits.
func LimitedArgv(limits []Rlimit, argv []string) []string {
	texts := make([]string, len(limits))
	for i, l := range limits {
		texts[i] = strconv.FormatUint(uint64(l.Resource), 10) + "=" + strconv.FormatUint(l.Soft, 10) + ":" + strconv.FormatUint(l.Hard, 10)
	}
	return append([]string{FilesProgram, LimitedCommand, strings.Join(texts, ",")}, argv...)
}

// LimitedProgram returns the arguments of the program inside a LimitedArgv, or all of another argv.
func LimitedProgram(argv []string) []string {
	if len(argv) > LimitedAhead && argv[0] == FilesProgram && argv[1] == LimitedCommand {
		return argv[LimitedAhead:]
	}
	return argv
}
