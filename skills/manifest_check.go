// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Bounds of texts of the front matter, in characters.
const (
	maxName          = 64
	maxDescription   = 1024
	maxCompatibility = 500
)

// maxBytes bounds a name in bytes, as directories have that name.
const maxBytes = 255

// What a body should not exceed, in lines.
const fineLines = 500

// Check lists everything that prevents a document from being written as the skill in a directory named dir; "" for a skill
// without a name yet. These are the rules of agentskills.io.
func (d *manifest) Check(dir string) []Problem {
	list := append([]Problem(nil), d.wrong...)
	add := func(key, format string, args ...any) {
		list = append(list, Problem{key, fmt.Sprintf(format, args...)})
	}
	if d.header == nil {
		if len(list) == 0 {
			add("", "no front matter: it must begin and end with a line of ---")
		}
		return list
	}
	for _, key := range []string{keyName, keyDisplayName, keyDescription, keyLicense, keyCompatibility, keyAllowedTools} {
		if n := d.find(key); n != nil && (n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str") {
			add(key, "not a string; put it in quotes")
		}
	}
	name := d.Text(keyName)
	if why := checkName(name); why != nil {
		add(keyName, "%s", why)
	}
	if dir != "" && name != dir {
		add(keyName, "%.80q is not the name of the directory, %.80q", name, dir)
	}
	bounded := func(key string, limit int, needed bool) {
		n, exists := utf8.RuneCountInString(d.Text(key)), d.find(key) != nil
		switch {
		case n > limit:
			add(key, "%d characters, more than %d", n, limit)
		case n == 0 && needed:
			add(key, "missing or empty: it says what the skill does and when to use it, in 1 to %d characters", limit)
		case n == 0 && exists:
			add(key, "empty: must be 1 to %d characters, or left out", limit)
		}
	}
	bounded(keyDescription, maxDescription, true)
	bounded(keyCompatibility, maxCompatibility, false)
	if strings.ContainsFunc(d.Text(keyDescription), isControl) {
		add(keyDescription, "a control character in it")
	}
	d.checkMetadata(add)
	return list
}

func (d *manifest) checkMetadata(add func(key, format string, args ...any)) {
	n := d.find(keyMetadata)
	if n == nil {
		return
	}
	if n.Kind != yaml.MappingNode {
		add(keyMetadata, "not a mapping of texts to texts")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		if k.Kind != yaml.ScalarNode || v.Kind != yaml.ScalarNode || v.ShortTag() != "!!str" {
			add(keyMetadata+"."+k.Value, "not a string; put it in quotes")
		}
	}
}

func isControl(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }

// advice lists what is allowed but not recommended.
func (d *manifest) advice() []string {
	var list []string
	if n := strings.Count(d.Body, "\n"); n > fineLines {
		list = append(list, fmt.Sprintf("the instructions have %d lines: what is beyond %d is better in files of its own", n, fineLines))
	}
	if strings.TrimSpace(d.Body) == "" {
		list = append(list, "there are no instructions")
	}
	return list
}

// checkName says why a name is invalid for a skill to write, nil if it is valid.
func checkName(name string) error {
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return fmt.Errorf("missing or empty: must be 1 to %d characters", maxName)
	case n > maxName:
		return fmt.Errorf("%d characters, more than %d", n, maxName)
	case strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-"):
		return errors.New("a hyphen at its beginning or end")
	case strings.Contains(name, "--"):
		return errors.New("two hyphens in a row")
	}
	for _, r := range name {
		if r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return fmt.Errorf("%q in it: must be a-z, 0-9 and hyphens", r)
		}
	}
	return nil
}

// CheckLooseName says why a name is invalid for a skill to read, nil if it is valid. It accepts what others allow: letters and
// digits of any script, hyphens and underscores.
func CheckLooseName(name string) error {
	letters := 0
	for _, r := range name {
		switch {
		case unicode.IsLetter(r) || unicode.IsNumber(r):
			letters++
		case r != '-' && r != '_':
			return errors.New("Skill name can only contain letters, numbers, hyphens and underscores") // clients know this text
		}
	}
	switch {
	case name == "":
		return errors.New("Skill name is required")
	case letters == 0:
		return errors.New("Skill name can only contain letters, numbers, hyphens and underscores")
	case utf8.RuneCountInString(name) > maxName:
		return errors.New("Skill name cannot exceed 64 characters")
	case len(name) > maxBytes:
		return fmt.Errorf("Skill name cannot exceed %d bytes", maxBytes)
	}
	return nil
}
