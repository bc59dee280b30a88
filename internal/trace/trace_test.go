// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/trace"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParentIsReadStrictly(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		parent: parent,
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00":      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-ff":      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":      parent,
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what": parent,
		strings.Repeat("-", 55): "",

		"":           "",
		"00":         "",
		parent + "-": "",
		parent + " ": "",
		" " + parent: "",
		"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01what": "",
		"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":     "",
		"0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01":     "",
		"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01":     "",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01":     "",
		"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01":     "",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x":     "",
		"00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01":     "",
	} {
		got, ok := trace.ParseParent(in)
		if got != want || ok != (want != "") {
			t.Errorf("ParseParent(%q) = %q, %v; want %q", in, got, ok, want)
		}
	}
}

func FuzzParseParent(f *testing.F) {
	f.Add(parent)
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what")
	f.Fuzz(func(t *testing.T, in string) {
		out, ok := trace.ParseParent(in)
		if !ok {
			if out != "" {
				t.Fatalf("refused, and returned %q", out)
			}
			return
		}
		if again, ok := trace.ParseParent(out); !ok || again != out || len(out) != 55 {
			t.Fatalf("%q becomes %q, and that %q", in, out, again)
		}
		if out[3:52] != in[3:52] {
			t.Fatalf("%q became another trace: out = %q, want out[3:52] == in[3:52]", in, out)
		}
	})
}

func TestIDsOfCallers(t *testing.T) {
	t.Parallel()
	for id, legal := range map[string]bool{
		"a": true, "3f2a-99_x.y:z/1+2=@host": true, strings.Repeat("x", trace.MaxID): true,
		"": false, strings.Repeat("x", trace.MaxID+1): false, "a b": false, "a\nb": false, "ä": false, `a"b`: false, "a\x00": false, "a,b": false,
	} {
		r := trace.New(id, "nonsense")
		if got := r.ID == id; got != legal {
			t.Errorf("the id %q became %q", id, r.ID)
		}
		if !trace.LegalID(r.ID) || r.Parent != "" {
			t.Errorf("New made %+v", r)
		}
	}
	if a, b := trace.New("", ""), trace.New("", ""); a.ID == b.ID {
		t.Error("two requests have the same id")
	}
	r := trace.New("one", parent)
	if got := trace.Of(trace.With(t.Context(), r)); got != r || got.Parent != parent {
		t.Errorf("the request in the context is %+v, want got == %+v and got.Parent == parent", got, r)
	}
	if got := trace.Of(t.Context()); got != (trace.Request{}) {
		t.Errorf("a context without a request has %+v, want trace.Request{}", got)
	}
}
