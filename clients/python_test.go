// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// keywords are names of fields that are reserved words of Python.
var keywords = []string{"from", "for", "in", "class", "global", "not", "is", "import", "with", "as", "off"}

// pythonType is the type in Python. A field of a request may have only listed values; a field of an answer may have values that a
// later version adds.
func pythonType(s *schema, asked bool) string {
	if ref := s.ref(); ref != "" {
		return ref
	}
	switch {
	case len(s.AnyOf) > 0:
		var list []string
		for _, part := range s.AnyOf {
			if name := pythonType(part, asked); !slices.Contains(list, name) {
				list = append(list, name)
			}
		}
		return "Union[" + strings.Join(list, ", ") + "]"
	case asked && len(s.Enum) > 0:
		return `Literal["` + strings.Join(s.Enum, `", "`) + `"]`
	case s.Type == "array":
		return "List[" + pythonType(s.Items, asked) + "]"
	case s.Type == "object" && s.More != nil && s.More.schema != nil:
		return "Dict[str, " + pythonType(s.More.schema, asked) + "]"
	}
	switch s.Type {
	case "string":
		return "str"
	case "integer":
		return "int"
	case "number":
		return "float"
	case "boolean":
		return "bool"
	}
	return "Dict[str, Any]"
}

// pythonName is the attribute of a field.
func pythonName(name string) string {
	if name != "off" && slices.Contains(keywords, name) {
		return name + "_"
	}
	return name
}

// pythonAliases are the types that are no objects.
func pythonAliases(d *description, asked bool) (text string) {
	for _, n := range d.list {
		if (asked && n.asked || !asked && n.answered) && !n.object() {
			text += "\n" + wrap(n.Description, "#: ") + n.Name + " = " + pythonType(n.schema, asked) + "\n"
		}
	}
	return text
}

// pythonAnswers are dataclasses, whose optional fields are None where boxd has left them out.
func pythonAnswers(d *description) string {
	var w strings.Builder
	w.WriteString(header("#", ofDescription))
	w.WriteString(`
"""What boxd answers. A field that boxd has left out is None, and so is one that an older boxd does not know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union
`)
	w.WriteString(pythonAliases(d, false))
	for _, n := range d.list {
		if !n.answered || !n.object() {
			continue
		}
		fmt.Fprintf(&w, "\n\n@dataclass(frozen=True)\nclass %s:\n", n.Name)
		text := n.Description
		if text == "" {
			text = "The object " + n.Name + " of the API."
		}
		w.WriteString(docstring(text, "    "))
		list, required := d.fields(n.schema)
		slices.SortStableFunc(list, func(a, b property) int { // what has a default comes last
			switch {
			case required[a.Name] == required[b.Name]:
				return 0
			case required[a.Name]:
				return -1
			}
			return 1
		})
		for _, p := range list {
			w.WriteString("\n" + wrap(about(&p.schema), "    #: "))
			name, kind := pythonName(p.Name), pythonType(&p.schema, false)
			var options []string
			if !required[p.Name] {
				kind = "Optional[" + kind + "]"
				options = append(options, "default=None")
			}
			if name != p.Name {
				options = append(options, fmt.Sprintf("metadata={\"name\": %q}", p.Name))
			}
			fmt.Fprintf(&w, "    %s: %s", name, kind)
			switch {
			case len(options) == 1 && name == p.Name:
				w.WriteString(" = None")
			case len(options) > 0:
				w.WriteString(" = field(" + strings.Join(options, ", ") + ")")
			}
			w.WriteString("\n")
		}
	}
	return w.String()
}

// docstring is a text in three quotes.
func docstring(text, indent string) string {
	if !strings.HasSuffix(text, ".") && !strings.HasSuffix(text, "\n") {
		text += "."
	}
	lines := strings.Split(strings.TrimSuffix(wrap(strings.ReplaceAll(text, `\`, `\\`), indent), "\n"), "\n")
	lines[0] = indent + `"""` + strings.TrimPrefix(lines[0], indent)
	if len(lines) > 1 {
		return strings.Join(lines, "\n") + "\n" + indent + "\"\"\"\n"
	}
	return lines[0] + "\"\"\"\n"
}

// options are requests without what the methods of the client have as parameters of their own.
var options = []struct{ name, of, without string }{
	{"SessionOptions", "SessionRequest", "dry_run"},
	{"ExecOptions", "ExecRequest", "detach dry_run"},
	{"DetachedOptions", "ExecRequest", "id detach dry_run"},
	{"StreamOptions", "ExecRequest", "detach dry_run stdin stdin_encoding"},
	{"RunStreamOptions", "ExecRequest", "id detach dry_run stdin stdin_encoding"},
	{"MountOptions", "MountRequest", "source target"},
	{"CommitOptions", "ImageCommit", "name"},
	{"SkillOptions", "SkillRequest", "name description"},
	{"FileReadOptions", "FileRead", "path path_base64"},
	{"FileWriteOptions", "FileWrite", "path path_base64 content encoding"},
	{"FileListOptions", "FileList", "path path_base64"},
	{"FileStatOptions", "FileStat", "path path_base64"},
	{"FileGlobOptions", "FileGlob", "pattern"},
	{"FileGrepOptions", "FileGrep", "pattern"},
	{"FileMkdirOptions", "FileMkdir", "path path_base64"},
}

// pythonOptions are dictionaries of options.
func pythonOptions(w *strings.Builder, d *description) {
	for _, o := range options {
		fmt.Fprintf(w, "\n\nclass %s(TypedDict, total=False):\n    \"\"\"What else a %s may have.\"\"\"\n", o.name, o.of)
		list, _ := d.fields(d.byName[o.of].schema)
		pythonFields(w, list, func(name string) bool { return !slices.Contains(strings.Fields(o.without), name) })
	}
}

// pythonRequests are dictionaries with the names that boxd knows.
func pythonRequests(d *description) string {
	var w strings.Builder
	w.WriteString(header("#", ofDescription))
	w.WriteString(`
"""What boxd is asked for: dictionaries, whose keys a type checker knows."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, TypedDict, Union
`)
	w.WriteString(pythonAliases(d, true))
	for _, n := range d.list {
		if !n.asked || !n.object() {
			continue
		}
		list, required := d.fields(n.schema)
		if slices.ContainsFunc(list, func(p property) bool { return slices.Contains(keywords, p.Name) && p.Name != "off" }) {
			fmt.Fprintf(&w, "\n\n%s%s = TypedDict(\n    %q,\n    {\n", wrap(n.Description, "#: "), n.Name, n.Name)
			for _, p := range list {
				w.WriteString(wrap(about(&p.schema), "        # "))
				fmt.Fprintf(&w, "        %q: %q,\n", p.Name, pythonType(&p.schema, true))
			}
			w.WriteString("    },\n    total=False,\n)\n")
			continue
		}
		base := "TypedDict"
		if slices.ContainsFunc(list, func(p property) bool { return required[p.Name] }) && slices.ContainsFunc(list, func(p property) bool { return !required[p.Name] }) {
			base = "_" + n.Name
			fmt.Fprintf(&w, "\n\nclass %s(TypedDict):\n", base)
			pythonFields(&w, list, func(name string) bool { return required[name] })
		}
		total := ", total=False"
		if slices.IndexFunc(list, func(p property) bool { return !required[p.Name] }) < 0 {
			total = ""
		}
		fmt.Fprintf(&w, "\n\nclass %s(%s%s):\n", n.Name, base, total)
		text := n.Description
		if text == "" {
			text = "The object " + n.Name + " of the API."
		}
		w.WriteString(docstring(text, "    "))
		pythonFields(&w, list, func(name string) bool { return base == "TypedDict" || !required[name] })
	}
	pythonOptions(&w, d)
	return w.String()
}

func pythonFields(w *strings.Builder, list []property, wanted func(string) bool) {
	first := true
	for _, p := range list {
		if !wanted(p.Name) {
			continue
		}
		text := wrap(about(&p.schema), "    #: ")
		if !first || text != "" {
			w.WriteString("\n")
		}
		first = false
		fmt.Fprintf(w, "%s    %s: %s\n", text, p.Name, pythonType(&p.schema, true))
	}
}

// pythonProblems are the errors that boxd can answer, one class for each code.
func pythonProblems(d *description) string {
	var w strings.Builder
	w.WriteString(header("#", ofDescription))
	w.WriteString(`
"""The errors that boxd answers, a class for each code."""

from __future__ import annotations

from typing import Dict, Type

from .errors import Problem
`)
	for _, code := range d.problems() {
		fmt.Fprintf(&w, "\n\nclass %s(Problem):\n    \"\"\"The error of the code %s.\"\"\"\n", camel(code), code)
	}
	w.WriteString("\n\nBY_CODE: Dict[str, Type[Problem]] = {\n")
	for _, code := range d.problems() {
		fmt.Fprintf(&w, "    %q: %s,\n", code, camel(code))
	}
	w.WriteString("}\n")
	return w.String()
}

// What of the client for asyncio has another name in the blocking one, longer names first.
var blocking = []struct{ was, is string }{
	{"for programs with asyncio", "for programs without asyncio"},
	{"from ._aio import", "from ._io import"},
	{"from ._async_", "from ._"},
	{"AsyncIterator[", "Iterator["},
	{"AsyncIterator,", "Iterator,"},
	{"AsyncIterable[", "Iterable["},
	{" AsyncIterable,", ""},
	{"__aiter__", "__iter__"},
	{"__anext__", "__next__"},
	{"__aenter__", "__enter__"},
	{"__aexit__", "__exit__"},
	{"StopAsyncIteration", "StopIteration"},
	{"aclosing", "closing"},
	{"async def ", "def "},
	{"async with ", "with "},
	{"async for ", "for "},
	{"await ", ""},
}

var asyncName = regexp.MustCompile(`\b(_?)Async([A-Z][A-Za-z]*)\b`)

// block makes the blocking client of the one for asyncio.
func block(name, source string) string {
	_, source, _ = strings.Cut(source, "\n")
	for _, pair := range blocking {
		source = strings.ReplaceAll(source, pair.was, pair.is)
	}
	return header("#", "its sibling "+name) + asyncName.ReplaceAllString(source, "$1$2")
}

// There is one client of Python. The blocking one is the same without await.
func TestTheBlockingPythonClientIsGeneratedFromTheAsyncOne(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"client", "resources"} {
		source, err := os.ReadFile("python/boxd/_async_" + name + ".py")
		if err != nil {
			t.Fatal(err)
		}
		upToDate(t, "python/boxd/_"+name+".py", block("_async_"+name+".py", string(source)))
	}
}
