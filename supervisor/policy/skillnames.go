// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"

	"github.com/boxd-dev/boxd/internal/fault"
)

// longestSkillNames is longer than the name of any skill, in bytes.
const longestSkillNames = 1024

// readSkillNames returns the names, each once; at most is their maximum number. It does not check that they exist.
func readSkillNames(names []string, limit int) ([]string, error) {
	list := slices.Compact(slices.Sorted(slices.Values(names)))
	if len(list) > limit {
		return nil, fault.Field("skills", len(list), fmt.Sprintf("at most %d", limit))
	}
	for _, name := range list {
		if name == "" || len(name) > longestSkillNames || !Printable(name) {
			return nil, fault.Field("skills", name, "the name of a skill")
		}
	}
	return list, nil
}
