// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/conns"
	"github.com/boxd-dev/boxd/supervisor/access"
)

func described(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData([]byte(openAPI()))
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

// row is a route in the form of the document.
type row struct{ Role, Query, Path string }

// Every route is described, with its role and parameters, and everything described is a route.
func TestRoutesAreWhatIsDescribed(t *testing.T) {
	t.Parallel()
	table, document := map[string]row{}, map[string]row{}
	for _, r := range routes(nil) {
		_, path, _ := strings.Cut(r.Pattern, " ")
		ids := []string{}
		for segment := range strings.SplitSeq(path, "/") {
			if id, ok := strings.CutPrefix(segment, "{"); ok {
				ids = append(ids, strings.TrimSuffix(id, "}"))
			}
		}
		role := "anyone"
		if r.Role != unauthenticated {
			role = r.Role.String()
		}
		table[r.Pattern] = row{role, sorted(strings.Fields(r.Query)), sorted(ids)}
	}
	for path, item := range described(t).Paths.Map() {
		for method, op := range item.Operations() {
			in := map[string][]string{}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				in[p.Value.In] = append(in[p.Value.In], p.Value.Name)
			}
			role, _ := op.Extensions["x-boxd-role"].(string)
			document[method+" "+path] = row{role, sorted(in["query"]), sorted(in["path"])}
		}
	}
	if diff := cmp.Diff(table, document); diff != "" {
		t.Errorf("routes and document differ (-routes +document):\n%s", diff)
	}
}

func sorted(list []string) string {
	list = slices.Clone(list)
	slices.Sort(list)
	return strings.Join(list, " ")
}

// Every kind of fault has a problem type, and there are no others.
func TestProblemTypesAreTheKindsOfFault(t *testing.T) {
	t.Parallel()
	var want, got []string
	for k := fault.Internal; !strings.HasPrefix(k.String(), "kind-"); k++ {
		want = append(want, api.ProblemType+k.String())
	}
	for _, v := range described(t).Components.Schemas["Problem"].Value.Properties["type"].Value.Enum {
		text, _ := v.(string)
		got = append(got, text)
	}
	if sorted(want) != sorted(got) {
		t.Errorf("kinds are %q, described are %q, want sorted(want) == sorted(got)", want, got)
	}
}

// Every client that can connect gets the document unchanged.
func TestTheDocumentIsServed(t *testing.T) {
	t.Parallel()
	s, _ := quiet()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, as(t.Context(), access.Principal{Name: "uid:1", Role: access.User}, http.MethodGet, "/v1/openapi.json"))
	doc, err := openapi3.NewLoader().LoadFromData(w.Body.Bytes())
	if err != nil || w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf(`%d %v: err = %v, want no error and w.Code == 200 and w.Header().Get("Content-Type") == "application/json"`,
			w.Code, w.Header(), err)
	}
	if want := described(t); doc.Paths.Len() != want.Paths.Len() || doc.Info.Description != want.Info.Description {
		t.Errorf("another document: doc.Info = %+v, want doc.Paths.Len() == want.Paths.Len() and doc.Info.Description == %v",
			doc.Info, want.Info.Description)
	}
}

// A closed list of words has every word in the code.
func TestClosedListsAreThoseOfTheCode(t *testing.T) {
	t.Parallel()
	schemas := described(t).Components.Schemas
	for _, tc := range []struct{ schema, field, dir, prefix, more string }{
		{"Session", "state", "../supervisor/session", "State", "frozen unhealthy"},
		{"Status", "state", "../supervisor", "Condition", ""},
		{"ExecResult", "status", "../supervisor/session", "Status", ""},
		{"Process", "state", "../supervisor/process", "State", ""},
		{"Process", "reason", "../supervisor/process", "Reason", ""},
		{"Restart", "policy", "../supervisor/process", "Restart", ""},
		{"SessionRequest", "network", "../supervisor/policy", "Network", ""},
		{"LimitsPatch", "oom", "../supervisor/policy", "OOM", ""},
		{"Limits", "oom", "../supervisor/policy", "OOM", ""},
		{"Mount", "mode", "../supervisor/policy", "Mount", ""},
		{"Profile", "leftovers", "../supervisor/policy", "Leftovers", ""},
	} {
		var got []string
		for _, v := range schemas[tc.schema].Value.Properties[tc.field].Value.Enum {
			text, _ := v.(string)
			got = append(got, text)
		}
		want := words(t, tc.dir, tc.prefix)
		want = append(want, strings.Fields(tc.more)...)
		if len(want) == 0 || sorted(want) != sorted(got) {
			t.Errorf("%s.%s: described are %q, in the code are %q, want len(want) != 0 and sorted(want) == sorted(got)",
				tc.schema, tc.field, got, want)
		}
	}
}

// words returns the string constants of a package whose names begin with prefix.
func words(t *testing.T, dir, prefix string) (list []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(spec.Names[0].Name, prefix) {
				return true
			}
			for _, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					list = append(list, text)
				}
			}
			return true
		})
	}
	return list
}

// The guide has the actual limits of the API.
func TestTheGuideHasTheBoundsOfTheAPI(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guide/api.md")
	if err != nil {
		t.Fatal(err)
	}
	size, length := func(n int64) string { return quantity.Size(n).String() }, func(d time.Duration) string { return quantity.Duration(d).String() }
	for _, row := range []string{
		fmt.Sprintf("all users but root together | %d; %d |", conns.Each, conns.All),
		fmt.Sprintf("for one user's previews; of all unauthenticated clients | %d; %d |", conns.Each/2, conns.Unknown),
		fmt.Sprintf("one user follows | %d |", conns.Streams),
		fmt.Sprintf("request body: session; command or process | %s, %s |", size(maxSessionBody), size(MaxBody)),
		fmt.Sprintf("request bodies of one user at the same time | %s |", size(conns.Bytes)),
		fmt.Sprintf("request header | %s |", size(maxHeader)),
		fmt.Sprintf("time to send a header; a body; to read an answer | %s, %s, %s |", length(headerTimeout), length(conns.BodyPatience), length(answerTimeout)),
		fmt.Sprintf("`wait` | %s |", length(maxWait)),
	} {
		if !strings.Contains(string(guide), row) {
			t.Errorf("the guide does not say %q", row)
		}
	}
}
