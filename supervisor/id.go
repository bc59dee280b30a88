// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// Principal is who is calling. Ids of sessions belong to it: two principals may both have "s1".
type Principal struct {
	Name   string // "uid:1000"
	UID    uint32
	GID    uint32
	Groups []uint32
	Admin  bool // may see and end the sessions of others
}

// maxID is the length of a session id in bytes.
const maxID = 256

// validateID accepts any UTF-8 text without control characters. No id is ever a path: the key is.
func validateID(id string) error {
	if id == "" || len(id) > maxID || !policy.Printable(id) {
		return fault.Field("id", id, "1 to 256 bytes of UTF-8 without control characters")
	}
	return nil
}

// newID makes an id nobody can guess, short enough to type.
func newID() string { return strings.ToLower(rand.Text()[:12]) }

// keyOf names a session on the host. Principals have no NUL in their names, so no two pairs are one.
func keyOf(principal, id string) string {
	sum := sha256.Sum256([]byte(principal + "\x00" + id))
	return hex.EncodeToString(sum[:isolation.KeyLen/2])
}

// hostnameOf makes a DNS label of an id.
func hostnameOf(id string) string {
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
