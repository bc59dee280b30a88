// SPDX-License-Identifier: Apache-2.0

package isolation

import (
	"path"
	"slices"
)

// Targets says what the target of a mount must be, for errors.
const Targets = "a path that the box does not need itself (nothing in /bin, /dev, /lib, /proc, /run, /sbin or /sys; not all of /etc, /home, /usr or /var)"

// Reserved reports whether a clean absolute path is one that a box needs itself, so that it cannot start with a mount there: its
// programs and libraries, what PID 1 mounts, the directories above those, and links that every box has.
func Reserved(at string) bool {
	whole := []string{"/dev", "/proc", "/run", "/sys", SkillsDir, DrivesDir, path.Dir(FilesProgram), "/var/run", "/var/tmp"}
	for _, dir := range HostDirs()[1:] { // all but /usr, most of which may be an image's own
		whole = append(whole, "/"+dir)
		if at == "/usr/"+dir {
			return true
		}
	}
	above := []string{"/", "/etc", "/home", "/usr", "/var", "/var/lib"}
	return slices.Contains(above, at) || slices.ContainsFunc(whole, func(dir string) bool { return Within(at, dir) })
}
