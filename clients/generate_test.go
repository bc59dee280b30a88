// SPDX-License-Identifier: Apache-2.0

// Package clients_test writes the generated parts of the clients in other languages: the types of the API, from its description,
// and the blocking Python client, from the one for asyncio. With UPDATE in the environment the files are written, otherwise
// compared.
package clients_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// schema is what of a JSON schema the description of the API uses.
type schema struct {
	Ref         string      `yaml:"$ref"`
	Type        string      `yaml:"type"`
	Description string      `yaml:"description"`
	Enum        []string    `yaml:"enum"`
	Items       *schema     `yaml:"items"`
	Properties  properties  `yaml:"properties"`
	Required    []string    `yaml:"required"`
	More        *additional `yaml:"additionalProperties"`
	AllOf       []*schema   `yaml:"allOf"`
	AnyOf       []*schema   `yaml:"anyOf"`
	OneOf       []*schema   `yaml:"oneOf"`
}

// holder is a place in the description with a schema.
type holder struct {
	Schema *schema `yaml:"schema"`
}

// property is a field of an object.
type property struct {
	Name string
	schema
}

// properties are the fields of an object, in the order of the description.
type properties []property

func (p *properties) UnmarshalYAML(n *yaml.Node) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		field := property{Name: n.Content[i].Value}
		if err := n.Content[i+1].Decode(&field.schema); err != nil {
			return err
		}
		*p = append(*p, field)
	}
	return nil
}

// additional says what an object may have beside its properties: a schema, or whether there may be anything.
type additional struct{ *schema }

func (a *additional) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return nil
	}
	a.schema = &schema{}
	return n.Decode(a.schema)
}

// named is a schema with its name.
type named struct {
	Name string
	*schema
	asked, answered bool // it is part of a request, or of an answer
}

// description is the API as its description has it.
type description struct {
	list   []*named
	byName map[string]*named
}

// object reports whether a schema has fields of its own.
func (s *schema) object() bool { return len(s.Properties) > 0 || s.Type == "object" && s.More == nil }

// ref is the name of the schema that one refers to, if it is nothing but that.
func (s *schema) ref() string {
	if s.Ref == "" && len(s.AllOf) == 1 && len(s.Properties) == 0 {
		return s.AllOf[0].ref()
	}
	return strings.TrimPrefix(s.Ref, "#/components/schemas/")
}

// fields are those of an object and of what it is made of, and whether each is required.
func (d *description) fields(s *schema) (list []property, required map[string]bool) {
	required = map[string]bool{}
	for _, part := range s.AllOf {
		more, must := d.fields(d.byName[part.ref()].schema)
		list = append(list, more...)
		for name := range must {
			required[name] = true
		}
	}
	for _, name := range s.Required {
		required[name] = true
	}
	return append(list, s.Properties...), required
}

// reach marks what a schema consists of.
func (d *description) reach(s *schema, mark func(*named) *bool) {
	if s == nil {
		return
	}
	if n := d.byName[s.ref()]; n != nil {
		if seen := mark(n); !*seen {
			*seen = true
			d.reach(n.schema, mark)
		}
	}
	d.reach(s.Items, mark)
	if s.More != nil {
		d.reach(s.More.schema, mark)
	}
	for i := range s.Properties {
		d.reach(&s.Properties[i].schema, mark)
	}
	for _, part := range slices.Concat(s.AllOf, s.AnyOf, s.OneOf) {
		d.reach(part, mark)
	}
}

// described reads the description.
func described(t *testing.T) *description {
	t.Helper()
	data, err := os.ReadFile("../relay/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	type body struct {
		Content map[string]holder `yaml:"content"`
	}
	var document struct {
		Paths      map[string]map[string]yaml.Node `yaml:"paths"`
		Components struct {
			Schemas   properties      `yaml:"schemas"`
			Responses map[string]body `yaml:"responses"`
		} `yaml:"components"`
	}
	if err := yaml.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	d := &description{byName: map[string]*named{}}
	for _, p := range document.Components.Schemas {
		n := &named{Name: p.Name, schema: &p.schema}
		d.list, d.byName[p.Name] = append(d.list, n), n
	}
	asked := func(n *named) *bool { return &n.asked }
	answered := func(n *named) *bool { return &n.answered }
	for _, item := range document.Paths {
		for method, node := range item {
			if method == "parameters" {
				continue
			}
			var operation struct {
				Body      body            `yaml:"requestBody"`
				Responses map[string]body `yaml:"responses"`
			}
			if err := node.Decode(&operation); err != nil {
				t.Fatal(err)
			}
			for _, c := range operation.Body.Content {
				d.reach(c.Schema, asked)
			}
			for _, r := range operation.Responses {
				for _, c := range r.Content {
					d.reach(c.Schema, answered)
				}
			}
		}
	}
	for _, r := range document.Components.Responses {
		for _, c := range r.Content {
			d.reach(c.Schema, answered)
		}
	}
	d.reach(&schema{Ref: "ClientControl"}, asked)
	d.reach(&schema{Ref: "ServerControl"}, answered)
	for _, n := range d.list {
		if !n.asked && !n.answered {
			t.Errorf("the schema %s is in no request and no answer", n.Name)
		}
	}
	return d
}

// problems are the codes of errors, in their order.
func (d *description) problems() (codes []string) {
	for _, p := range d.byName["Problem"].Properties {
		if p.Name == "type" {
			for _, v := range p.Enum {
				codes = append(codes, strings.TrimPrefix(v, "urn:boxd:problem:"))
			}
		}
	}
	return codes
}

// camel is a code as the name of a type.
func camel(code string) string {
	var name strings.Builder
	for word := range strings.SplitSeq(code, "_") {
		name.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return name.String()
}

// wrap breaks a text into lines, each of which begins with a prefix.
func wrap(text, prefix string) string {
	const width = 110
	var out strings.Builder
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(prefix)+len(line)+1+len(word) > width {
			out.WriteString(prefix + line + "\n")
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		out.WriteString(prefix + line + "\n")
	}
	return out.String()
}

// about is the description of a schema, with the words that it may be.
func about(s *schema) string {
	text := s.Description
	if len(s.Enum) > 0 {
		if text != "" {
			text += "; "
		}
		text += "one of " + strings.Join(s.Enum, ", ")
	}
	return text
}

// upToDate compares a generated file with what is there, or writes it.
func upToDate(t *testing.T, path, want string) {
	t.Helper()
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is not up to date, write it with UPDATE=1 go test ./clients (-want +got):\n%s", path, diff)
	}
}

// header begins a generated file.
func header(comment, from string) string {
	return comment + " SPDX-License-Identifier: Apache-2.0\n" + comment + "\n" + comment + " Code generated from " + from + " by UPDATE=1 go test ./clients. DO NOT EDIT.\n"
}

const ofDescription = "relay/openapi.json"

func TestTypesOfPythonAreThoseOfTheDescription(t *testing.T) {
	t.Parallel()
	d := described(t)
	upToDate(t, "python/boxd/answers.py", pythonAnswers(d))
	upToDate(t, "python/boxd/requests.py", pythonRequests(d))
	upToDate(t, "python/boxd/problems.py", pythonProblems(d))
}
