// SPDX-License-Identifier: Apache-2.0

// On some host directories the kernel can enforce a project quota.

package policy

import (
	"slices"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// QuotaRootsKey is the key of box.toml that lists those directories.
const QuotaRootsKey = "mounts.quota_roots"

// QuotaRoots are the directories listed by the operator.
type QuotaRoots []string

// of returns the one that contains a host directory, "" if there is none.
func (l QuotaRoots) of(path string) string {
	i := slices.IndexFunc(l, func(root string) bool { return isolation.Within(path, root) })
	if i < 0 {
		return ""
	}
	return l[i]
}

// Can says why the kernel cannot enforce a quota on a host directory, nil if it can. found has the keeper's result for each root:
// its path, and what it lacks.
func (l QuotaRoots) Can(found []string, path string) error {
	root := l.of(path)
	if root == "" {
		return fault.Errorf(fault.Unsupported, "no quota for %s: it is not below a directory of %s", fault.Show(path), QuotaRootsKey).
			WithHint("the operator can add a directory above it to " + QuotaRootsKey)
	}
	lacks := "the keeper was started before it was configured"
	for ; len(found) > 1; found = found[2:] {
		if found[0] == root {
			lacks = found[1]
		}
	}
	if lacks == "" {
		return nil
	}
	f := fault.Errorf(fault.Unsupported, "no quota for %s: %s", fault.Show(path), lacks).
		WithHint("the operator can enable project quotas on its filesystem (see boxctl doctor), or add \"workspace\" to limits.best_effort").
		By(fault.Denial{Layer: fault.LayerLimit, Rule: "limits.best_effort", Setting: "limits.best_effort with \"workspace\""})
	f.Field, f.Value = "mounts", path
	return f
}
