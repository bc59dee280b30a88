// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// load reads the document as boxd serves it.
func load(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(openAPI()))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// The served document is generated from openapi.yaml, without indentation, which would be 65 KB of boxd. With UPDATE in the environment it is written again.
func TestWhatIsServedIsWhatWasWritten(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(source, &root); err != nil {
		t.Fatal(err)
	}
	var flat, want bytes.Buffer
	toJSON(t, &flat, root.Content[0])
	if err := json.Indent(&want, flat.Bytes(), "", ""); err != nil {
		t.Fatal(err)
	}
	want.WriteByte('\n')
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile("openapi.json", want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return // the embedded one is older
	}
	if diff := cmp.Diff(want.String(), openAPI()); diff != "" {
		t.Errorf("openapi.json is not openapi.yaml, write it with UPDATE=1 (-yaml +json):\n%s", diff)
	}
}

// toJSON writes a node with its keys in their original order.
func toJSON(t *testing.T, w *bytes.Buffer, n *yaml.Node) {
	t.Helper()
	switch n.Kind {
	case yaml.MappingNode:
		seen := map[string]bool{}
		for i := 0; i < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if seen[key] {
				t.Fatalf("line %d: %s is there twice", n.Content[i].Line, key)
			}
			seen[key] = true
			w.WriteString(separator(i, "{"))
			scalar(t, w, key)
			w.WriteByte(':')
			toJSON(t, w, n.Content[i+1])
		}
		w.WriteString(closing(len(n.Content), "{}"))
	case yaml.SequenceNode:
		for i, e := range n.Content {
			w.WriteString(separator(i, "["))
			toJSON(t, w, e)
		}
		w.WriteString(closing(len(n.Content), "[]"))
	case yaml.ScalarNode:
		var v any
		if err := n.Decode(&v); err != nil {
			t.Fatal(err)
		}
		if v == nil {
			t.Fatalf("line %d: an empty value", n.Line)
		}
		scalar(t, w, v)
	default:
		t.Fatalf("line %d: has an anchor: write the schema once, with $ref", n.Line)
	}
}

func separator(i int, open string) string {
	if i == 0 {
		return open
	}
	return ","
}

func closing(n int, both string) string {
	if n == 0 {
		return both
	}
	return both[1:]
}

func scalar(t *testing.T, w *bytes.Buffer, v any) {
	t.Helper()
	switch v.(type) {
	case string, bool, int, float64:
	default:
		t.Fatalf("%v is a %T: quote it", v, v)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
}

// The document is valid OpenAPI 3.1, its examples match their schemas, and every component is used.
func TestTheDocumentIsValid(t *testing.T) {
	t.Parallel()
	doc := load(t)
	if doc.OpenAPI != "3.1.0" || !doc.IsOpenAPI31OrLater() {
		t.Errorf("version %s", doc.OpenAPI)
	}
	if err := doc.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
		t.Error(err)
	}
	text := openAPI()
	roots := []string{"schemas/ClientControl", "schemas/ServerControl"} // messages of streams, which only prose names
	for kind, names := range map[string][]string{
		"schemas": keys(doc.Components.Schemas), "responses": keys(doc.Components.Responses), "parameters": keys(doc.Components.Parameters),
	} {
		for _, name := range names {
			ref := kind + "/" + name
			if !strings.Contains(text, `"#/components/`+ref+`"`) && !strings.Contains(strings.Join(roots, " "), ref) {
				t.Errorf("nothing refers to %s", ref)
			}
		}
	}
}

func keys[V any](m map[string]V) (list []string) {
	for k := range m {
		list = append(list, k)
	}
	return list
}

// The document is readable: every operation has a short summary and an id of its own, and no text is long.
func TestTheDocumentReadsWell(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	camel := regexp.MustCompile(`^[a-z][a-zA-Z]+$`)
	for path, item := range load(t).Paths.Map() {
		for method, op := range item.Operations() {
			if op.Summary == "" || len(op.Summary) > 80 || strings.HasSuffix(op.Summary, ".") || len(op.Tags) != 1 {
				t.Errorf("%s %s: summary %q, tags %q", method, path, op.Summary, op.Tags)
			}
			if !camel.MatchString(op.OperationID) || ids[op.OperationID] {
				t.Errorf("%s %s: operationId %q", method, path, op.OperationID)
			}
			ids[op.OperationID] = true
			if op.Responses.Default() == nil {
				t.Errorf("%s %s does not say what other errors are like", method, path)
			}
		}
	}
}
