// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// maxID is the length of a session id in bytes.
const maxID = 256

// ValidateID accepts any UTF-8 text without control characters. No id is ever a path: the key is.
func ValidateID(id string) error {
	if id == "" || len(id) > maxID || !Printable(id) {
		return fault.Field("id", id, "1 to 256 bytes of UTF-8 without control characters")
	}
	return nil
}

// NewID makes an id nobody can guess, short enough to type.
func NewID() string { return strings.ToLower(rand.Text()[:12]) }

// Key names a session on the host. Principals have no NUL in their names, so no two pairs are one.
func Key(principal, id string) string {
	sum := sha256.Sum256([]byte(principal + "\x00" + id))
	return hex.EncodeToString(sum[:isolation.KeyLen/2])
}

// Hostname makes a DNS label of an id.
func Hostname(id string) string {
	label := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, id)
	label = label[:min(len(label), isolation.MaxHostname)]
	if label = strings.Trim(label, "-"); label == "" {
		return "box"
	}
	return label
}
