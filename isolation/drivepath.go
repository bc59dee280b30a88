// SPDX-License-Identifier: Apache-2.0

// Where a box has its drives and the trees that its writable root is made of.

package isolation

import "strings"

// DrivesDir is where a box has its drives, two levels below it. Like SkillsDir it is part of the
// image's tree, so that no program of the box, and no mount of its session, can be in the way
// there.
const DrivesDir = "/drives"

// Where a box with a writable root has the layers of that, read-only.
const (
	RootImage   = "/var/lib/boxd/image"
	RootChanged = "/var/lib/boxd/changed" // as overlayfs stores it: a device 0:0 stands for something removed
)

// maxTreeName bounds the name of a tree, and each part of the name of a drive.
const maxTreeName = 64

// ValidTree reports whether a text can be the name of a tree.
func ValidTree(name string) bool {
	const chars = "abcdefghijklmnopqrstuvwxyz0123456789-"
	return name != "" && len(name) <= maxTreeName && strings.Trim(name, chars) == "" && name[0] != '-'
}

// ValidDrive reports whether a text is the name of a drive: its owner, a slash and its project,
// each 1 to 64 of a-z, 0-9, "-", "_" and ".", beginning with a letter or digit.
func ValidDrive(name string) bool {
	const chars = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	owner, project, ok := strings.Cut(name, "/")
	for _, part := range []string{owner, project} {
		if part == "" || len(part) > maxTreeName || strings.Trim(part, chars) != "" || strings.Contains("-_.", part[:1]) {
			return false
		}
	}
	return ok
}

// DriveTarget returns where a drive is in a box.
func DriveTarget(name string) string { return DrivesDir + "/" + name }

// IsDriveTarget reports whether a path is one where a box can have a drive.
func IsDriveTarget(at string) bool {
	name, ok := strings.CutPrefix(at, DrivesDir+"/")
	return ok && ValidDrive(name)
}
