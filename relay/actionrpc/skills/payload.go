// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"encoding/json"
	"strings"

	"github.com/boxd-dev/boxd/relay/actionrpc/envelope"
	"github.com/boxd-dev/boxd/relay/actionrpc/lax"
)

// text is a key of the payload that has to be there.
func (r *Request) text(key string) (string, error) {
	text, given, err := r.optional(key, "")
	if err == nil && !given {
		err = envelope.Errorf("KeyError", "'%s'", key)
	}
	return text, err
}

// name is the skill that is meant.
func (r *Request) name() (string, error) {
	name, err := r.text("name")
	return strings.TrimSpace(name), err
}

// optional is a key that can be left out, or be null.
func (r *Request) optional(key, otherwise string) (text string, given bool, err error) {
	raw := r.Data[key]
	if lax.Null(raw) {
		return otherwise, false, nil
	}
	text, ok := lax.String(raw)
	if !ok {
		return "", true, envelope.Errorf("ValueError", "%s must be a string", key)
	}
	return text, true, nil
}

// list is a list of texts that can be left out, or be null.
func (r *Request) list(key string) (texts []string, err error) {
	raw := r.Data[key]
	if lax.Null(raw) {
		return nil, nil
	}
	if json.Unmarshal(raw, &texts) != nil {
		return nil, envelope.Errorf("ValueError", "%s must be a list of strings", key)
	}
	return texts, nil
}
