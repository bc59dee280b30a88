// SPDX-License-Identifier: Apache-2.0

package policy

import "strings"

// ImageRoot is the image of a session, even if the image's name is reused or removed.
type ImageRoot struct {
	Digest string            `json:"digest"`
	Tree   string            `json:"tree"`
	Env    map[string]string `json:"env,omitempty"` // overridden by the configured and the session's
	Dir    string            `json:"dir,omitempty"` // working directory of programs that give none
	// Command is what runs where no command is given.
	Command []string `json:"command,omitempty"`
}

// maxImageName bounds the name of an image.
const maxImageName = 255

// ValidImageName reports whether a text can be the name of an image, or its digest.
func ValidImageName(name string) bool {
	const chars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	return name != "" && len(name) <= maxImageName && strings.ContainsRune(chars, rune(name[0])) && strings.Trim(name, chars+"._-/:@+") == "" &&
		!strings.Contains(name, "..") && !strings.Contains(name, "//")
}
