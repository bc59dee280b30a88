// SPDX-License-Identifier: Apache-2.0

package mounts

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/isolation"
)

// A worker's job decodes to a mount change, with a place exactly where its kind needs one, or is refused.
func FuzzJob(f *testing.F) {
	req := &isolation.ChangeMount{Op: isolation.MountLook, Mount: isolation.Mount{Source: "/a", Target: "/mnt/b"}}
	f.Add(encode(askChange, make([]byte, placeLen), req))
	f.Add(encode(askChange+1, nil, req))
	f.Add([]byte{askChange})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		kind, place, got := decode(data)
		if got != nil && (kind == askChange) != (len(place) == placeLen) {
			t.Errorf("%x: kind %d with a place of %d bytes", data, kind, len(place))
		}
	})
}

// A rule about sources never allows a system directory, and never assigns root's ids.
func FuzzAllowRule(f *testing.F) {
	for _, text := range []string{"{home}", "/srv", "/srv=1000:1000", "/srv=0:0", "/", "/etc", "/srv/../etc", "/srv=1:4294967296", "=", "/proc/self"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parseAllowRule(text)
		if err != nil {
			return
		}
		if _, owned, _ := strings.Cut(text, "="); r.Path != homePath && (!isolation.CleanAbsolute(r.Path) || system(r.Path, "")) || owned != "" && (r.UID == 0 || r.GID == 0) {
			t.Errorf(`%q: r = %+v, want (r.Path == homePath or isolation.CleanAbsolute(r.Path) and not system(r.Path, "")) and (owned == "" or r.UID != 0 and r.GID != 0)`,
				text, r)
		}
	})
}
