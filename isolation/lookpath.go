// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"errors"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// LookPath finds a program as execvp(3) does, with the rights of this thread. ENOENT: there is
// nothing of that name; EACCES: there is something, but it is not executable. A name with a slash
// is left for execve to judge.
func LookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	found := error(unix.ENOENT)
	for dir := range strings.SplitSeq(pathOf(env), ":") {
		if dir == "" {
			continue // POSIX means the current directory, which is never a good idea
		}
		path := dir + "/" + name
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if errors.Is(err, unix.EACCES) {
			found = err
		}
	}
	return "", found
}

func pathOf(env []string) string {
	for _, kv := range slices.Backward(env) {
		if p, ok := strings.CutPrefix(kv, "PATH="); ok {
			return p
		}
	}
	return "/usr/bin:/bin"
}

func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	return unix.Faccessat2(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}
