// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
)

// maxID is the longest session id in bytes.
const maxID = 256

// ValidateID accepts any UTF-8 text without control characters. An id is never used as a path: the key is.
func ValidateID(id string) error {
	if id == "" || len(id) > maxID || !Printable(id) {
		return fault.Field("id", id, "1 to 256 bytes of UTF-8 without control characters")
	}
	return nil
}

// NewID makes an unguessable id, short enough to type.
func NewID() string { return strings.ToLower(rand.Text()[:12]) }

// SessionID returns the id for a request: its own, one made from the template and its variables, or a random one if it gives
// neither. A template that the operator forces makes every id.
func (c *Config) SessionID(h *EffectivePolicy, req *Request) (string, error) {
	text, force, rule := c.Sessions.Template, c.Sessions.ForceTemplate, "sessions.force_template"
	if h.Template != "" {
		text, force = h.Template, false
	}
	if h.Force {
		force, rule = true, h.Rule("force_template")
	}
	if !force && req.Template != "" {
		text = req.Template
	}
	switch {
	case len(req.Variables) > maxVariables:
		return "", fault.Field("variables", len(req.Variables), fmt.Sprintf("at most %d", maxVariables))
	case force && req.Template != "" && req.Template != text:
		return "", forced("template", req.Template, text, rule)
	case !force && req.ID != "" && (req.Template != "" || req.Variables != nil):
		return "", fault.Field("id", req.ID, "left out with a template or variables").WithText("id: cannot be combined with a template or variables, which make the id")
	case !force && req.ID != "":
		return req.ID, ValidateID(req.ID)
	case !force && req.Template == "" && req.Variables == nil:
		req.MadeUp = true
		return NewID(), nil
	case text == "":
		return "", fault.Field("variables", fault.Word("given"), "left out without a template").WithText("variables: there is no template to put them into").
			WithHint("name a template, for example template = \"per_chat\"")
	}
	t, err := ParseTemplate(text)
	if err != nil {
		return "", fault.Field("template", text, err.Error())
	}
	id, err := t.Fill(req.Variables)
	if err != nil {
		return "", err
	}
	if force && req.ID != "" && req.ID != id {
		return "", forced("id", req.ID, id, rule)
	}
	return id, ValidateID(id)
}

// maxVariables is how many a request may give.
const maxVariables = 64

func forced(field, value, allowed, rule string) error {
	return fault.Field(field, value, allowed).Of(fault.Denied).WithHint("leave %s out: ids are made from a template here", field).
		By(fault.Denial{Layer: fault.LayerPolicy, Rule: rule, Allowed: allowed, Setting: rule + " = false"})
}

// Key names a session on the host. Names of principals have no NUL, so distinct pairs have distinct keys.
func Key(principal, id string) string {
	sum := sha256.Sum256([]byte(principal + "\x00" + id))
	return hex.EncodeToString(sum[:isolation.KeyLen/2])
}
