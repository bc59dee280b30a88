// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"encoding/json"
	"strings"
)

// text is a key of the payload that has to be there.
func (r *SkillRequest) text(key string) (string, error) {
	text, given, err := r.optional(key, "")
	if err == nil && !given {
		err = refusalf("KeyError", "'%s'", key)
	}
	return text, err
}

// name is the skill that is meant.
func (r *SkillRequest) name() (string, error) {
	name, err := r.text("name")
	return strings.TrimSpace(name), err
}

// optional is a key that can be left out, or be null.
func (r *SkillRequest) optional(key, otherwise string) (text string, given bool, err error) {
	raw := r.Data[key]
	if isNull(raw) {
		return otherwise, false, nil
	}
	text, ok := stringOf(raw)
	if !ok {
		return "", true, refusalf("ValueError", "%s must be a string", key)
	}
	return text, true, nil
}

// list is a list of texts that can be left out, or be null.
func (r *SkillRequest) list(key string) (texts []string, err error) {
	raw := r.Data[key]
	if isNull(raw) {
		return nil, nil
	}
	if json.Unmarshal(raw, &texts) != nil {
		return nil, refusalf("ValueError", "%s must be a list of strings", key)
	}
	return texts, nil
}
