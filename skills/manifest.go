// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Files that make a directory a skill, in search order. Only the first is ever written.
const (
	ManifestFile      = "SKILL.md"
	otherManifestFile = "skill.md"
)

// Bounds of a document, in bytes.
const (
	maxManifest = 1 << 20
	maxHeader   = 64 << 10
)

// Keys of the front matter that boxd uses. Others are kept as they are.
const (
	keyName          = "name"
	keyDisplayName   = "display_name"
	keyDescription   = "description"
	keyLicense       = "license"
	keyCompatibility = "compatibility"
	keyMetadata      = "metadata"
	keyAllowedTools  = "allowed-tools"
)

// manifest is one SKILL.md: front matter in YAML, then Markdown. Reading accepts what it can and notes what is wrong with the
// rest; Check is what a document must pass to be written, and finds all problems at once. The zero value is empty.
type manifest struct {
	// Body has the instructions: the text after the front matter, without leading empty lines.
	Body string

	header *yaml.Node // a mapping; nil: none
	wrong  []Problem  // problems found by reading
}

// Problem is one problem of a document.
type Problem struct {
	Key  string // of the front matter; "": the whole document
	Text string // what is wrong, and what is allowed
}

// String returns a line for people.
func (p Problem) String() string {
	if p.Key == "" {
		return p.Text
	}
	return p.Key + ": " + p.Text
}

// errNotText means that a file cannot be a document.
var errNotText = errors.New("not a text in UTF-8 of at most 1048576 bytes")

// readManifest reads a document. It fails only if it is not text; Check reports any other problem. Unreadable front matter counts
// as missing.
func readManifest(data []byte) (*manifest, error) {
	if len(data) > maxManifest || !utf8.Valid(data) {
		return nil, errNotText
	}
	header, body, found := splitFrontMatter(strings.TrimPrefix(string(data), "\ufeff"))
	d := &manifest{Body: body}
	switch {
	case !found:
		d.fault("", "no front matter: it must begin and end with a line of ---")
	case len(header) > maxHeader:
		d.fault("", "the front matter has %d bytes, more than %d", len(header), maxHeader)
	default:
		d.parse(header)
	}
	return d, nil
}

func (d *manifest) fault(key, format string, args ...any) {
	d.wrong = append(d.wrong, Problem{key, fmt.Sprintf(format, args...)})
}

// splitFrontMatter finds the front matter. Without an end mark all of the text is the body.
func splitFrontMatter(text string) (header, body string, found bool) {
	first, rest, more := strings.Cut(text, "\n")
	if !isFence(first) || !more {
		return "", text, false
	}
	for at := 0; at < len(rest); {
		line, _, more := strings.Cut(rest[at:], "\n")
		next := at + len(line)
		if more {
			next++
		}
		if isFence(line) {
			return rest[:at], strings.TrimLeft(rest[next:], "\r\n"), true
		}
		at = next
	}
	return "", text, false
}

func isFence(line string) bool { return strings.TrimRight(line, " \t\r") == "---" }

// parse reads the front matter. Aliases are never followed: they can expand to enormous values.
func (d *manifest) parse(text string) {
	var top yaml.Node
	if err := yaml.Unmarshal([]byte(text), &top); err != nil {
		d.fault("", "the front matter is no YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
		return
	}
	if top.Kind == 0 || len(top.Content) != 1 || top.Content[0].Kind != yaml.MappingNode {
		d.fault("", "the front matter must map keys to values")
		return
	}
	header := top.Content[0]
	if why := d.walk(header, ""); why != "" {
		d.fault("", "%s", why)
		return
	}
	header.HeadComment = joinComments(top.HeadComment, header.HeadComment)
	header.FootComment = joinComments(header.FootComment, top.FootComment)
	d.header = header
}

func joinComments(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "\n" + b
}

// walk finds what a front matter must not have anywhere; it returns what makes it unreadable.
func (d *manifest) walk(n *yaml.Node, key string) string {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return "the front matter has anchors or aliases: not allowed"
	}
	seen := map[string]bool{}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 {
			if c.Kind == yaml.ScalarNode && seen[c.Value] {
				d.fault(key+c.Value, "duplicate key, again in line %d", c.Line+1)
			}
			seen[c.Value] = true
		}
		below := key
		if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Kind == yaml.ScalarNode {
			below = key + n.Content[i-1].Value + "."
		}
		if why := d.walk(c, below); why != "" {
			return why
		}
	}
	return ""
}

// find returns the value of a key, the last one if the key occurs twice.
func (d *manifest) find(key string) *yaml.Node {
	if d.header == nil {
		return nil
	}
	for i := len(d.header.Content) - 2; i >= 0; i -= 2 {
		if k := d.header.Content[i]; k.Kind == yaml.ScalarNode && k.Value == key {
			return d.header.Content[i+1]
		}
	}
	return nil
}

// Text returns the value of a key as text, "" if there is none or it is no scalar.
func (d *manifest) Text(key string) string {
	n := d.find(key)
	if n == nil || n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
		return ""
	}
	return strings.TrimSpace(n.Value)
}

// Metadata returns the mapping under the key metadata, as texts.
func (d *manifest) Metadata() map[string]string {
	n := d.find(keyMetadata)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	m := map[string]string{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k, v := n.Content[i], n.Content[i+1]; k.Kind == yaml.ScalarNode && v.Kind == yaml.ScalarNode {
			m[k.Value] = v.Value
		}
	}
	return m
}

// Set sets a key to a text; "" removes the key.
func (d *manifest) Set(key, text string) {
	if text == "" {
		d.put(key, nil)
		return
	}
	d.put(key, yamlScalar(text))
}

// setMetadata replaces the mapping under the key metadata; an empty one removes the key.
func (d *manifest) setMetadata(m map[string]string, order []string) {
	if len(m) == 0 {
		d.put(keyMetadata, nil)
		return
	}
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, key := range order {
		n.Content = append(n.Content, yamlScalar(key), yamlScalar(m[key]))
	}
	d.put(keyMetadata, n)
}

// yamlScalar returns a text, quoted where a reader of any YAML version could mistake it for something else.
func yamlScalar(text string) *yaml.Node {
	n := new(yaml.Node)
	if n.Encode(text) != nil { // cannot fail
		n.SetString(text)
	}
	return n
}

// put replaces a value in place, or appends it: everything else stays, in its order.
func (d *manifest) put(key string, value *yaml.Node) {
	if d.header == nil {
		d.header = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		d.wrong = nil // its problems are gone with it
	}
	var fields []*yaml.Node
	done := false
	for i := 0; i+1 < len(d.header.Content); i += 2 {
		k, v := d.header.Content[i], d.header.Content[i+1]
		if k.Kind == yaml.ScalarNode && k.Value == key {
			if value == nil || done {
				continue
			}
			v, done = value, true
		}
		fields = append(fields, k, v)
	}
	if value != nil && !done {
		fields = append(fields, yamlScalar(key), value)
	}
	d.header.Content = fields
}

// Bytes returns the document as a file.
func (d *manifest) Bytes() ([]byte, error) {
	var b bytes.Buffer
	if d.header != nil && len(d.header.Content) > 0 {
		b.WriteString("---\n")
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		if err := e.Encode(d.header); err != nil {
			return nil, fmt.Errorf("write front matter: %w", err)
		}
		if err := e.Close(); err != nil {
			return nil, fmt.Errorf("write front matter: %w", err)
		}
		b.WriteString("---\n\n")
	}
	b.WriteString(strings.TrimLeft(d.Body, "\r\n"))
	if b.Len() > maxManifest || !utf8.Valid(b.Bytes()) {
		return nil, errNotText
	}
	return b.Bytes(), nil
}
