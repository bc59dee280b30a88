// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// example is a command in the user guide, and what the guide says it prints.
type example struct {
	command string
	prints  []string
}

// examples parses the blocks of a page of the guide: "$ " begins a command, which continues to
// the end of a here document or a group; what follows is its output.
func examples(page string) (list []example) {
	end := ""
	for line := range strings.SplitSeq(page, "\n") {
		text, indented := strings.CutPrefix(line, "    ")
		command, begins := strings.CutPrefix(text, "$ ")
		switch {
		case end != "":
			last := &list[len(list)-1]
			last.command += "\n" + text
			if strings.HasPrefix(strings.TrimSpace(text), end) {
				end = ""
			}
		case indented && begins:
			list = append(list, example{command: command})
			switch {
			case strings.HasSuffix(command, "<<'END'"):
				end = "END"
			case command == "{":
				end = "}"
			}
		case indented && len(list) > 0:
			last := &list[len(list)-1]
			last.prints = append(last.prints, text)
		default:
			list = append(list, example{}) // what follows belongs to no command
		}
	}
	return slices.DeleteFunc(list, func(e example) bool { return e.command == "" })
}

// isInteractive reports whether a command needs what a test does not have: a person at a terminal, a network, or a Ctrl-C.
func isInteractive(command string) bool {
	for _, word := range []string{"-it ", "logs -f", "npm", " files"} {
		if strings.Contains(command, word) {
			return true
		}
	}
	return false
}

// GuideUser follows the guide: a user in the socket's group who is not root.
const GuideUser = 65534

// Guide follows pages of the user guide.
type Guide struct {
	Home string // contains a directory named project

	t *testing.T
	d *Daemon
}

// NewGuide makes a home directory and returns a Guide.
func NewGuide(t *testing.T, d *Daemon) *Guide {
	t.Helper()
	home := filepath.Join(d.Dir, "home")
	for _, dir := range []string{home, filepath.Join(home, "project")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(dir, GuideUser, GuideUser); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "project", "data.csv"), []byte("1,2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return &Guide{home, t, d}
}

// Follow runs the commands of a page in their order, and checks that each does and prints what
// the page says.
func (g *Guide) Follow(page string) {
	t, d, home := g.t, g.d, g.Home
	t.Helper()
	list := slices.DeleteFunc(examples(page), func(e example) bool { return isInteractive(e.command) })
	const exits, ends = "exit 4", "timeout 5" // parts of commands that exit with another status than 0
	var script strings.Builder
	script.WriteString("cd\n")
	for i, e := range list { // a command may use the exit status of the one before
		fmt.Fprintf(&script, "%s\nstatus=$?; printf '\\n@%d %%d\\n' $status; (exit $status)\n", e.command, i)
	}
	cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", fmt.Sprint(GuideUser), "--regid", fmt.Sprint(GuideUser), "--clear-groups", "bash", "-c", script.String()+"true\n")
	cmd.Env = []string{"HOME=" + home, "PATH=" + Programs(t) + ":/usr/local/bin:/usr/bin:/bin", "BOXD_SOCKET=" + d.Socket, "LANG=C.UTF-8"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rest := string(out)
	for i, e := range list {
		var printed, status string
		printed, rest, _ = strings.Cut(rest, fmt.Sprintf("\n@%d ", i))
		status, rest, _ = strings.Cut(rest, "\n")
		want := "0"
		switch {
		case strings.Contains(e.command, exits):
			want = "4"
		case strings.Contains(e.command, ends):
			want = "124"
		}
		if status != want {
			t.Errorf("%s\nended with %s: printed = %s, want status == %v", e.command, status, printed, want)
		}
		lines := strings.Split(strings.TrimSpace(printed), "\n")
		for n, want := range e.prints {
			if n < len(lines) && isTable(e.prints[0]) {
				want, lines[n] = strings.Join(strings.Fields(e.prints[0]), " "), strings.Join(strings.Fields(lines[0]), " ") // ids and times differ
			}
			if n >= len(lines) || lines[n] != want {
				t.Errorf("%s\nprints %q, want %q", e.command, lines, e.prints)
				break
			}
		}
	}
	if len(list) == 0 {
		t.Error("no commands")
	}
}

func isTable(header string) bool {
	return strings.HasPrefix(header, "ID ") || strings.HasPrefix(header, "NAME ")
}
