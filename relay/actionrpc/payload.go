// SPDX-License-Identifier: Apache-2.0

package actionrpc

import (
	"encoding/json"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

// text returns a required key of the payload.
func (r *SkillRequest) text(key string) (string, error) {
	text, given, err := r.optional(key, "")
	if err == nil && !given {
		err = wire.Refusef("KeyError", "'%s'", key)
	}
	return text, err
}

// name returns the skill that the request names.
func (r *SkillRequest) name() (string, error) {
	name, err := r.text("name")
	return strings.TrimSpace(name), err
}

// optional returns a key that may be missing or null.
func (r *SkillRequest) optional(key, otherwise string) (text string, given bool, err error) {
	raw := r.Data[key]
	if wire.IsNull(raw) {
		return otherwise, false, nil
	}
	text, ok := wire.StringOf(raw)
	if !ok {
		return "", true, wire.Refusef("ValueError", "%s must be a string", key)
	}
	return text, true, nil
}

// list returns a list of strings that may be missing or null.
func (r *SkillRequest) list(key string) (texts []string, err error) {
	raw := r.Data[key]
	if wire.IsNull(raw) {
		return nil, nil
	}
	if json.Unmarshal(raw, &texts) != nil {
		return nil, wire.Refusef("ValueError", "%s must be a list of strings", key)
	}
	return texts, nil
}
