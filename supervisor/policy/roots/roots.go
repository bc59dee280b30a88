// SPDX-License-Identifier: Apache-2.0

// Package roots knows below which directories of the host the kernel can be asked for a quota, and whether it can keep one.
package roots

import (
	"slices"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// Key is the key of box.toml that lists the directories.
const Key = "mounts.quota_roots"

// List are the directories that the operator has listed.
type List []string

// Of is the one that a directory of the host is in, "" if there is none.
func (l List) Of(path string) string {
	i := slices.IndexFunc(l, func(root string) bool { return isolation.Within(path, root) })
	if i < 0 {
		return ""
	}
	return l[i]
}

// Can says why the kernel cannot keep a quota of a directory of the host, nil if it can.
func (l List) Can(path string) error {
	if l.Of(path) == "" {
		return fault.Errorf(fault.Unsupported, "%s is not below a directory of %s", fault.Show(path), Key).
			WithHint("as the operator, list one that it is below: the kernel then counts what is in it")
	}
	return nil
}
