// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// typeScriptType is the type in TypeScript. A field of an answer may have values that a later version adds.
func typeScriptType(s *schema, closed bool) string {
	if ref := s.ref(); ref != "" {
		return ref
	}
	switch {
	case len(s.AnyOf) > 0:
		var list []string
		for _, part := range s.AnyOf {
			list = append(list, typeScriptType(part, closed))
		}
		return strings.Join(list, " | ")
	case len(s.Enum) > 0:
		words := `"` + strings.Join(s.Enum, `" | "`) + `"`
		if closed {
			return words
		}
		return words + " | (string & {})"
	case s.Type == "array":
		if name := typeScriptType(s.Items, closed); !strings.Contains(name, "|") {
			return name + "[]"
		}
		return "(" + typeScriptType(s.Items, closed) + ")[]"
	case s.Type == "object" && s.More != nil && s.More.schema != nil:
		return "Record<string, " + typeScriptType(s.More.schema, closed) + ">"
	}
	switch s.Type {
	case "string":
		return "string"
	case "integer", "number":
		return "number"
	case "boolean":
		return "boolean"
	}
	return "Record<string, unknown>"
}

// comment is a documentation comment, which editors show.
func comment(text, indent string) string {
	text = strings.ReplaceAll(text, "*/", "*\\/")
	lines := strings.TrimSuffix(wrap(text, indent+" * "), "\n")
	switch {
	case text == "":
		return ""
	case !strings.Contains(lines, "\n"):
		return indent + "/** " + strings.TrimPrefix(lines, indent+" * ") + " */\n"
	}
	return indent + "/**\n" + lines + "\n" + indent + " */\n"
}

// typeScriptTypes are the types of requests and answers alike: both are plain objects.
func typeScriptTypes(d *description) string {
	var w strings.Builder
	w.WriteString(header("//", ofDescription))
	w.WriteString("\n// What boxd is asked for, and what it answers.\n")
	for _, n := range d.list {
		w.WriteString("\n" + comment(n.Description, ""))
		closed := n.asked && !n.answered
		if !n.object() {
			fmt.Fprintf(&w, "export type %s = %s;\n", n.Name, typeScriptType(n.schema, closed))
			continue
		}
		var bases []string
		for _, part := range n.AllOf {
			bases = append(bases, part.ref())
		}
		extends := ""
		if len(bases) > 0 {
			extends = " extends " + strings.Join(bases, ", ")
		}
		fmt.Fprintf(&w, "export interface %s%s {\n", n.Name, extends)
		required := map[string]bool{}
		for _, name := range n.Required {
			required[name] = true
		}
		for _, p := range n.Properties {
			mark := "?"
			if required[p.Name] {
				mark = ""
			}
			name := p.Name
			if !identifier.MatchString(name) {
				name = fmt.Sprintf("%q", name)
			}
			fmt.Fprintf(&w, "%s  %s%s: %s;\n", comment(about(&p.schema), "  "), name, mark, typeScriptType(&p.schema, closed))
		}
		w.WriteString("}\n")
	}
	return w.String()
}

// typeScriptProblems are the errors that boxd can answer, one class for each code.
func typeScriptProblems(d *description) string {
	var w strings.Builder
	w.WriteString(header("//", ofDescription))
	w.WriteString("\n// The errors that boxd answers, a class for each code.\n\nimport { ProblemError, type ProblemAnswer } from \"./errors.js\";\n")
	for _, code := range d.problems() {
		fmt.Fprintf(&w, "\n/** The error of the code %s. */\nexport class %sError extends ProblemError {}\n", code, camel(code))
	}
	w.WriteString("\n/** The class of each code. */\nexport const byCode: Record<string, new (answer: ProblemAnswer) => ProblemError> = {\n")
	for _, code := range d.problems() {
		fmt.Fprintf(&w, "  %s: %sError,\n", code, camel(code))
	}
	w.WriteString("};\n")
	return w.String()
}

// identifier is what a field must be called so that it needs no quotes.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func TestTypesOfTypeScriptAreThoseOfTheDescription(t *testing.T) {
	t.Parallel()
	d := described(t)
	upToDate(t, "typescript/src/types.ts", typeScriptTypes(d))
	upToDate(t, "typescript/src/problems.ts", typeScriptProblems(d))
}
