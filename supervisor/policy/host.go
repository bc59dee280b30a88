// SPDX-License-Identifier: Apache-2.0

package policy

import "strings"

// validTemplate refuses an invalid template; "" is valid.
func validTemplate(text string) error {
	if text == "" {
		return nil
	}
	_, err := ParseTemplate(text)
	return err
}

// Hostname makes a DNS label of at most this many bytes from an id.
func Hostname(id string, limit int) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, id)
	label = label[:min(len(label), limit)]
	if label = strings.Trim(label, "-"); label == "" {
		return "box"
	}
	return label
}
