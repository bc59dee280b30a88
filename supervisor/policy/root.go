// SPDX-License-Identifier: Apache-2.0

package policy

import "strings"

// ImageRoot is an image as a session has it, whatever becomes of the name.
type ImageRoot struct {
	Digest string            `json:"digest"`
	Tree   string            `json:"tree"`
	Env    map[string]string `json:"env,omitempty"` // of its own, below the configured and the session's
	Dir    string            `json:"dir,omitempty"` // in which programs start that name none
	// Command is what runs where nobody says what.
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
