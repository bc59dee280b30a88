// SPDX-License-Identifier: Apache-2.0

// Session ids are made from templates and from values that callers give. Different values never make the same id, whatever they
// contain.

package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/boxd-dev/boxd/internal/fault"
)

// Bounds of a template and its values, in bytes.
const (
	maxTemplate     = 512
	maxTemplateName = 64
	MaxValue        = 4096
	MaxID           = 256 // of the result
)

// TemplatePresets are named templates, for chat bots.
func TemplatePresets() map[string]string {
	return map[string]string{
		"per_chat":         "{launcher_type}_{launcher_id}",
		"per_user":         "{launcher_type}_{launcher_id}_{sender_id}",
		"per_conversation": "{launcher_type}_{launcher_id}_{conversation_id}",
		"per_message":      "{query_id}",
		"global":           "{global:global}",
	}
}

// Template is a text with variables in braces: "{name}", or "{name:default}" for an optional one. {{ and }} are literal braces.
type Template struct {
	parts []part
	// separators has the characters of the text between variables, except letters and digits: in a value they are written as %XX, and
	// so is %.
	separators string
}

// part is literal text, or a variable.
type part struct {
	text     string // or the default
	variable string
	optional bool
}

// ParseTemplate parses a template, or the name of a preset.
func ParseTemplate(text string) (*Template, error) {
	if preset, ok := TemplatePresets()[text]; ok {
		text = preset
	}
	if text == "" || len(text) > maxTemplate || !printable(text) {
		return nil, fmt.Errorf("a preset (%s), or 1 to %d bytes without control characters", strings.Join(slices.Sorted(maps.Keys(TemplatePresets())), ", "), maxTemplate)
	}
	t := &Template{}
	literal := ""
	for text != "" {
		switch {
		case strings.HasPrefix(text, "{{"), strings.HasPrefix(text, "}}"):
			literal, text = literal+text[:1], text[2:]
		case text[0] == '}':
			return nil, errors.New("a template with a { for each } (double a brace to mean itself)")
		case text[0] == '{':
			inner, rest, ok := strings.Cut(text[1:], "}")
			if !ok {
				return nil, errors.New("a template with a } for each { (double a brace to mean itself)")
			}
			if literal != "" {
				t.parts, literal = append(t.parts, part{text: literal}), ""
			}
			p, err := variable(inner)
			if err != nil {
				return nil, err
			}
			t.parts, text = append(t.parts, p), rest
		default:
			_, n := utf8.DecodeRuneInString(text)
			literal, text = literal+text[:n], text[n:]
		}
	}
	if literal != "" {
		t.parts = append(t.parts, part{text: literal})
	}
	return t, t.separate()
}

func variable(inner string) (part, error) {
	name, def, optional := strings.Cut(inner, ":")
	if !validTemplateName(name) {
		return part{}, fmt.Errorf("a template without the variable %s: names have 1 to %d letters, digits and _", fault.Show(name), maxTemplateName)
	}
	if strings.Contains(def, "{") {
		return part{}, fmt.Errorf("a template whose variable %s has a default without braces", name)
	}
	return part{text: def, variable: name, optional: optional}, nil
}

// validTemplateName reports whether a variable may have this name.
func validTemplateName(name string) bool {
	return name != "" && len(name) <= maxTemplateName && strings.IndexFunc(name, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) < 0
}

// separate refuses variables whose boundary would be ambiguous.
func (t *Template) separate() error {
	for i, p := range t.parts {
		if p.variable != "" {
			if i > 0 && t.parts[i-1].variable != "" {
				return fmt.Errorf("a template with text between the variables %s and %s", t.parts[i-1].variable, p.variable)
			}
			continue
		}
		if strings.Contains(p.text, "%") {
			return errors.New("a template without %, which ids use for escapes")
		}
		between := i > 0 && i < len(t.parts)-1
		signs := strings.Map(func(r rune) rune {
			if unicode.IsLetter(r) || unicode.IsDigit(r) {
				return -1
			}
			return r
		}, p.text)
		if between && signs == "" {
			return fmt.Errorf("a template with a _ between the variables %s and %s, as letters and digits may be part of either", t.parts[i-1].variable, t.parts[i+1].variable)
		}
		if between {
			t.separators += signs
		}
	}
	return nil
}

// variables lists the required variables.
func (t *Template) variables() (names []string) {
	for _, p := range t.parts {
		if p.variable != "" && !p.optional && !slices.Contains(names, p.variable) {
			names = append(names, p.variable)
		}
	}
	return names
}

// Fill makes the id. Variables that the template does not use are ignored. An id longer than MaxID is cut, and ends with a digest
// of all of it instead.
func (t *Template) Fill(values map[string]string) (string, error) {
	var id strings.Builder
	for _, p := range t.parts {
		if p.variable == "" {
			id.WriteString(p.text)
			continue
		}
		value, given := values[p.variable]
		field := "variables." + p.variable
		switch {
		case !given && !p.optional:
			return "", fault.Field(field, fault.Word("missing"), "a value").
				WithHint("the id template needs the variables %s", strings.Join(t.variables(), ", "))
		case !given:
			value = p.text
		case len(value) > MaxValue || !printable(value):
			return "", fault.Field(field, value, fmt.Sprintf("at most %d bytes of UTF-8 without control characters", MaxValue))
		}
		t.write(&id, value)
	}
	if id.Len() == 0 {
		return "", fault.Field("variables", fault.Word("all empty"), "given with at least one value")
	}
	return bounded(id.String()), nil
}

// write writes a value with the characters of the separators escaped.
func (t *Template) write(id *strings.Builder, value string) {
	for _, r := range value {
		if r != '%' && !strings.ContainsRune(t.separators, r) {
			id.WriteRune(r)
			continue
		}
		for _, b := range []byte(string(r)) {
			fmt.Fprintf(id, "%%%02X", b)
		}
	}
}

// digestMark occurs in no id that was not cut: there a % is followed by two hexadecimal digits.
const digestMark = "%#"

// bounded cuts a long id to MaxID, with a digest that tells it from others with the same beginning.
func bounded(id string) string {
	if len(id) <= MaxID {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	end := digestMark + hex.EncodeToString(sum[:16])
	n := MaxID - len(end)
	for !utf8.RuneStart(id[n]) {
		n--
	}
	return id[:n] + end
}

func printable(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}
