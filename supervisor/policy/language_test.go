// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCodeOfEveryLengthFindsItsWayToTheInterpreter(t *testing.T) {
	t.Parallel()
	l := defaultLanguages()["python"]
	short, long := strings.Repeat("#", MaxArg), strings.Repeat("#", MaxArg+1)
	if argv, script := l.Command(short); script != -1 || !slices.Equal(argv, []string{"python3", "-c", short}) {
		t.Errorf(`argv = %.40q, script = %d, want script == -1 and argv == []string{"python3", "-c", short}`,
			argv, script)
	}
	if argv, script := l.Command(long); script != 1 || !slices.Equal(argv, []string{"python3", "{file}"}) {
		t.Errorf(`argv = %.40q, script = %d, want script == 1 and argv == []string{"python3", "{file}"}`, argv, script)
	}
	if l.Inline[2] != codePlaceholder {
		t.Error("building a command changed the configured one")
	}
}

func TestALanguageIsFoundByItsNames(t *testing.T) {
	t.Parallel()
	all := defaultLanguages()
	for name, is := range map[string]string{"node": "node", "js": "node", "javascript": "node", "ts": "typescript", "shell": "sh", "py": "python"} {
		got, ok := FindLanguage(all, name)
		if !ok || !slices.Equal(got.Inline, all[is].Inline) {
			t.Errorf("%s: got %+v, ok = %v, want ok == true and got.Inline == all[is].Inline", name, got, ok)
		}
	}
	for _, name := range []string{"", "cobol", "JS"} {
		if _, ok := FindLanguage(all, name); ok {
			t.Errorf("the language %q was accepted", name)
		}
	}
	all["js"] = Language{Suffix: ".mine"} // the operator's own takes precedence
	if got, _ := FindLanguage(all, "js"); got.Suffix != ".mine" {
		t.Errorf(`got %+v, want got.Suffix == ".mine"`, got)
	}
}

// TypeScript is run with whichever tool is installed: each stand-in prints how it was called.
func TestTypeScriptIsRunByWhatThereIs(t *testing.T) {
	t.Parallel()
	l := defaultLanguages()["typescript"]
	for has, want := range map[string][2]string{
		"tsx":  {"tsx -e let a", "tsx f.ts"},
		"bun":  {"bun -e let a", "bun f.ts"},
		"deno": {"deno eval --ext=ts let a", "deno run -A f.ts"},
		"node": {"node --no-warnings --experimental-strip-types --input-type=commonjs-typescript -e let a", "node --no-warnings --experimental-strip-types f.ts"},
		"":     {"typescript: tsx, bun, deno or Node.js 22.7 or later is needed", "typescript: tsx, bun, deno or Node.js 22.7 or later is needed"},
	} {
		bin := t.TempDir()
		if has != "" {
			text := "#!/bin/sh\n[ \"$3 $4\" = \"-e 0\" ] && exit\necho " + has + " \"$@\"\n"
			if has != "node" {
				text = "#!/bin/sh\necho " + has + " \"$@\"\n"
			}
			if err := os.WriteFile(filepath.Join(bin, has), []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for i, form := range [][]string{l.Inline, l.File} {
			argv := slices.Clone(form)
			argv[len(argv)-1] = []string{"let a", "f.ts"}[i]
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
			cmd.Env = []string{"PATH=" + bin}
			out, err := cmd.CombinedOutput()
			if got := strings.TrimSpace(string(out)); got != want[i] || (err != nil) != (has == "") {
				t.Errorf(`%q, %d: got %q, err = %v, want got == want[i] and (err != nil) == (has == "")`,
					has, i, got, err)
			}
		}
	}
}
