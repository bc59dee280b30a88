// SPDX-License-Identifier: Apache-2.0

package render_test

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/render"
)

// formatted is a list of two kinds of rows: one with every field, and one with none.
type formatted struct {
	ID        string             `json:"id"`
	CreatedAt time.Time          `json:"created_at"`
	Memory    quantity.Size      `json:"memory"`
	Lease     *quantity.Duration `json:"lease,omitempty"`
	Ended     *time.Time         `json:"ended_at,omitempty"`
	Pids      int                `json:"pids,omitempty"`
	CPU       float64            `json:"cpu"`
	Names     []string           `json:"names,omitempty"`
	Labels    map[string]string  `json:"labels,omitempty"`
	Usage     *formattedPart     `json:"usage,omitempty"`
	Parts     []formattedPart    `json:"parts"`
	formattedMore
}

type formattedPart struct {
	Used int64 `json:"used"`
}

type formattedMore struct {
	Inner bool `json:"inner_most"`
}

func formattedRows() []any {
	at := time.Date(2026, 11, 21, 9, 30, 0, 0, time.UTC)
	return []any{
		formatted{
			ID: "a", CreatedAt: at, Memory: 512 << 20, Lease: new(quantity.Duration(time.Minute)), Ended: &at, Pids: 12345678, CPU: 1.5, Names: []string{"x", "y"},
			Labels: map[string]string{"k": "<v>"}, Usage: &formattedPart{7}, Parts: []formattedPart{{1}, {2}}, formattedMore: formattedMore{true},
		},
		formatted{ID: "b"},
	}
}

func TestAFormatPrintsRowsAsJSONHasThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{{.id}}`:                                                       "a\nb\n",
		`{{.ID}} {{.CreatedAt}}`:                                        "a 2026-11-21T09:30:00Z\nb 0001-01-01T00:00:00Z\n",
		`{{.memory}} {{size .memory}}`:                                  "536870912 512MiB\n0 0\n",
		`{{.lease}}|{{.ended_at}}|{{.pids}}|{{.cpu}}`:                   "1m|2026-11-21T09:30:00Z|12345678|1.5\n||0|0\n",
		`{{join .names ","}}|{{len .names}}`:                            "x,y|2\n|0\n",
		`{{.labels.k}}|{{index .labels "k"}}`:                           "<v>|<v>\n|\n",
		`{{.usage.used}}{{if .usage}} used{{end}}`:                      "7 used\n\n",
		`{{with .Usage}}{{.Used}}{{else}}-{{end}}`:                      "7\n-\n",
		`{{range .parts}}{{.Used}};{{end}}`:                             "1;2;\n\n",
		`{{range $i, $p := .Parts}}{{$i}}={{$p.Used}} {{$.ID}} {{end}}`: "0=1 a 1=2 a \n\n",
		`{{$x := .Usage}}{{$x.Used}}`:                                   "7\n\n",
		`{{(index .parts 0).used}}{{break}}`:                            "",
		`{{.InnerMost}}\t{{upper .id}}`:                                 "true\tA\nfalse\tB\n",
		`{{if gt .pids 3}}many{{end}}`:                                  "many\n\n",
		`{{json .labels}} {{json .id}}`:                                 "{\"k\":\"<v>\"} \"a\"\nnull \"b\"\n",
		`{{json .usage}}{{range .parts}}{{json .}}{{end}}`:              "{\"used\":7}{\"used\":1}{\"used\":2}\nnull\n",
		"table {{.ID}}\t{{.CreatedAt}}\t{{.usage.used}}":                "ID  CREATED AT            USED\na   2026-11-21T09:30:00Z  7\nb   0001-01-01T00:00:00Z  \n",
		`table {{.id}}\t{{join .names ","}}`:                            "ID  NAMES\na   x,y\nb   \n",
		"table {{.labels.k}}\t{{.Labels}}":                              "K    LABELS\n<v>  map[k:<v>]\n     \n",
		`{{"{{"}}`:                                                      "{{\n{{\n",
	} {
		f, err := render.ParseFormat(text, reflect.TypeFor[formatted]())
		if want == "" {
			if err == nil {
				t.Errorf("%s is a template", text)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var out bytes.Buffer
		if err := f.Print(&out, formattedRows()...); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v, want %q", text, out.String(), err, want)
		}
	}
	f, err := render.ParseFormat("{{json .}}", reflect.TypeFor[formatted]())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := f.Print(&out, formatted{ID: "b"}); err != nil || out.String() != `{"cpu":0,"created_at":"0001-01-01T00:00:00Z","id":"b","inner_most":false,"memory":0,"parts":null}`+"\n" {
		t.Errorf("out = %q, err = %v, want no error and out.String() == `{\"cpu\":0,\"created_at\":\"0001-01-01T00:00:00Z\",\"id\":\"b\",\"inner_most\":false,\"memory\":0,\"parts\":null}` + \"\\n\"",
			out.String(), err)
	}
}

func TestABadFormatIsNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                       "the template is empty",
		"table ":                                 "the template is empty",
		"{{.id":                                  "unclosed action",
		"{{nope}}":                               `function "nope" not defined`,
		"{{end}}":                                "unexpected {{end}}",
		"{{.nope}}":                              "unknown field .nope",
		"{{.id.nope}}":                           "unknown field .id.nope",
		"{{.created_at.Unix}}":                   "unknown field .created_at.Unix",
		"{{.Usage.Nope}}":                        "unknown field .usage.Nope",
		"{{if .nope}}{{end}}":                    "unknown field .nope",
		"{{if 1}}{{.nope}}{{end}}":               "unknown field .nope",
		"{{if 0}}{{else}}{{.nope}}{{end}}":       "unknown field .nope",
		"{{range .parts}}{{.id}}{{end}}":         "unknown field .id",
		"{{range $p := .parts}}{{$p.id}}{{end}}": "unknown field .id",
		"{{with .usage}}{{$.used}}{{end}}":       "unknown field .used",
		"{{json (.nope)}}":                       "unknown field .nope",
		"{{(.usage).nope}}":                      "unknown field .nope",
		"{{$x := .usage}}{{$x.nope}}":            "unknown field .nope",
		"{{len .names | printf \"%d\" .nope}}":   "unknown field .nope",
	} {
		if _, err := render.ParseFormat(text, reflect.TypeFor[formatted]()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	f, err := render.ParseFormat("{{upper .pids}}", reflect.TypeFor[formatted]())
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Print(new(bytes.Buffer), formattedRows()...); err == nil || !strings.Contains(err.Error(), "upper needs a text, not a number") {
		t.Errorf(`a number in capitals: err = %v, want an error containing "upper needs a text, not a number"`, err)
	}
}

// Format strings that users of other tools type work with the existing rows.
func TestFormatsFitWhatBoxdAnswers(t *testing.T) {
	t.Parallel()
	for row, text := range map[any]string{
		&api.Session{}:      "{{.ID}} {{.State}} {{.CreatedAt}} {{.memory}} {{.usage.memory}} {{.labels.x}}",
		&api.Image{}:        "{{.Name}} {{.Digest}} {{size .bytes}} {{.config.env}}",
		&api.DriveVersion{}: "{{.Version}} {{.PushedAt}}",
		&api.SessionMount{}: "{{.Source}} {{.nosymfollow}}",
		&api.Workspace{}:    "{{.Name}} {{.Quota}} {{.usage.used}} {{join .sessions \" \"}}",
	} {
		f, err := render.ParseFormat("table "+text, reflect.TypeOf(row).Elem())
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if err := f.Print(new(bytes.Buffer), row); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
