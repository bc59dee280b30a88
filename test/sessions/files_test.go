// SPDX-License-Identifier: Apache-2.0

package sessions_test

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// fileKind returns the kind of a file error, "" for none.
func fileKind(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.File == nil {
		t.Fatalf("not about a file: err = %v, want ok == true and e.File != nil", err)
	}
	return e.File.Kind
}

func readFile(t *testing.T, d *boxtest.Daemon, path string) (string, string) {
	t.Helper()
	got, err := d.ReadFile(t.Context(), "s", &api.FileRead{Path: path})
	return got.Content, fileKind(t, err)
}

// A typical use by an agent: a project is uploaded, searched, edited and tested, and the results are downloaded.
func TestAnAgentWorksOnFiles(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	ctx, c := t.Context(), d.Client
	done, err := c.UploadArchive(ctx, "s", client.Upload{Path: "project"}, bytes.NewReader(boxtest.Tar(0o644, map[string]string{
		"add.sh": "#!/bin/sh\necho $(($1 - $2))\n", "test.sh": "#!/bin/sh\n[ $(sh add.sh 2 3) = 5 ] && echo passed >result\n", ".gitignore": "*.log\n", "noise.log": "echo $(($1 - $2))\n",
	})))
	if err != nil || done.Entries != 4 {
		t.Fatalf("uploaded %+v, %v", done, err)
	}
	found, err := c.GlobFiles(ctx, "s", &api.FileGlob{Pattern: "**/*.sh", Sort: "name"})
	if err != nil || len(found.Entries) != 2 || found.Entries[0].Path != "project/add.sh" {
		t.Fatalf("globbed %+v, %v", found, err)
	}
	lines, err := c.GrepFiles(ctx, "s", &api.FileGrep{Pattern: `\$1 - \$2`, Path: "project"})
	if err != nil || lines.Matches != 1 || lines.Files[0].Path != "add.sh" || lines.Files[0].Lines[0].Line != 2 {
		t.Fatalf("grepped %+v, %v", lines, err)
	}
	seen, err := c.ReadFile(ctx, "s", &api.FileRead{Path: "project/add.sh", Digest: true})
	if err != nil || seen.StartLine != 1 || seen.EndLine != 2 || seen.Truncated {
		t.Fatalf("read %+v, %v", seen, err)
	}
	edited, err := c.EditFile(ctx, "s", &api.FileEdit{Path: "project/add.sh", IfMatch: seen.File.Digest, Edits: []api.FileReplacement{{Old: "$1 - $2", New: "$1 + $2"}}})
	if err != nil || edited.Edits[0] != (api.FileReplaced{Count: 1, Line: 2}) {
		t.Fatalf("edited %+v, %v", edited, err)
	}
	d.Sh(t, "s", "cd project && sh test.sh")
	if got, k := readFile(t, d, "project/result"); got != "passed\n" || k != "" {
		t.Errorf("the result is %q (%s)", got, k)
	}
	// A written file belongs to the box user, and is what programs find.
	if _, err := c.WriteFile(ctx, "s", &api.FileWrite{Path: "project/deep/er/note", Content: "ü\n", Permission: "0600"}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "stat -c '%U %a' project/deep/er/note && cat project/deep/er/note && ls -A project/deep/er"); got != "box 600\nü\nnote\n" {
		t.Errorf("a program finds %q", got)
	}
	if err := c.MoveFile(ctx, "s", &api.FileMove{From: "project/deep", To: "project/notes"}); err != nil {
		t.Error(err)
	}
	if err := c.RemoveFile(ctx, "s", &api.FileRemove{Path: "project/noise.log"}); err != nil {
		t.Error(err)
	}
	got := unpacked(t, d, "project")
	if len(got) != 7 || got["notes/er/note"] != "ü\n" || got["add.sh"] != "#!/bin/sh\necho $(($1 + $2))\n" || got["result"] != "passed\n" {
		t.Errorf("fetched %q", got)
	}
	list, err := c.ListFiles(ctx, "s", &api.FileList{Path: "project"})
	if err != nil || len(list.Entries) != 5 {
		t.Errorf("listed %+v, %v", list, err)
	}
	// Afterwards no program runs and no file is left.
	nothingRuns(t, d)
}

// unpacked downloads an archive and returns its entries with their content; directories end in a slash and have none.
func unpacked(t *testing.T, d *boxtest.Daemon, path string) map[string]string {
	t.Helper()
	body, err := d.DownloadArchive(t.Context(), "s", path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	got := map[string]string{}
	for r := tar.NewReader(body); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got[h.Name] = string(text)
	}
}

// T18, T19: links lead where they lead for a program of the box, and nowhere else.
func TestFilesOfTheHostAreNotReached(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	secret := boxtest.TempDir(t) + "/secret"
	d.Sh(t, "s", "ln -s /etc/shadow shadow; ln -s ../../../../../../etc/shadow relative; ln -s "+secret+" secret; ln -s /proc/1/root/etc/shadow root; ln -s /proc/self/root proc; ln -s nothing dangling; echo x >f; ln -s f link")
	for _, path := range []string{"shadow", "relative", "secret", "dangling", "missing", "/etc/shadow", secret, "../../.." + secret} {
		for verb, got := range verbs(t, d, path) {
			if got != "not_found" && (verb != "stat" || path != "dangling") {
				t.Errorf("%s %s: %q, want what a missing file is", verb, path, got)
			}
		}
	}
	for verb, got := range verbs(t, d, "root") {
		if got != "not_found" && got != "not_permitted" {
			t.Errorf(`%s of the root of PID 1: got %q, want got == "not_found" or got == "not_permitted"`, verb, got)
		}
	}
	if got, k := readFile(t, d, "proc/etc/hostname"); k != "" || got != "s\n" {
		t.Errorf(`the root of the program is not that of the box: got %q, k = %s, want k == "" and got == "s\n"`,
			got, k)
	}
	if got, k := readFile(t, d, "link"); got != "x\n" || k != "" {
		t.Errorf(`a link within is %q %s, want got == "x\n" and k == ""`, got, k)
	}
	// No user in the box can change the image.
	for _, path := range []string{"/etc/hostname2", "/usr/bin/sh2", "/var/lib/boxd/boxfiles", "/proc/sys/kernel/hostname", "/sys/x"} {
		_, err := d.WriteFile(t.Context(), "s", &api.FileWrite{Path: path, Content: "x", NoParents: true})
		if k := fileKind(t, err); k == "" {
			t.Errorf("%s was written", path)
		}
	}
}

// verbs tries every operation on a path that changes nothing.
func verbs(t *testing.T, d *boxtest.Daemon, path string) map[string]string {
	t.Helper()
	ctx, c, got := t.Context(), d.Client, map[string]string{}
	_, err := c.ReadFile(ctx, "s", &api.FileRead{Path: path})
	got["read"] = fileKind(t, err)
	_, err = c.EditFile(ctx, "s", &api.FileEdit{Path: path, Edits: []api.FileReplacement{{Old: "a", New: "b"}}})
	got["edit"] = fileKind(t, err)
	_, err = c.StatFile(ctx, "s", &api.FileStat{Path: path})
	got["stat"] = fileKind(t, err)
	_, err = c.ListFiles(ctx, "s", &api.FileList{Path: path})
	got["list"] = fileKind(t, err)
	_, err = c.GrepFiles(ctx, "s", &api.FileGrep{Pattern: "x", Path: path})
	got["grep"] = fileKind(t, err)
	_, err = c.GlobFiles(ctx, "s", &api.FileGlob{Pattern: "*", Path: path})
	got["glob"] = fileKind(t, err)
	body, err := c.DownloadArchive(ctx, "s", path, false)
	if err == nil {
		body.Close()
	}
	got["archive"] = fileKind(t, err)
	return got
}

// T21, T25.
func TestStrangeFilesHaveDefinedAnswers(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", `mkfifo fifo; printf x >"$(printf 'new\nline')"; printf x >"$(printf 'caf\351')"; printf 'a\000b' >binary; mkdir dir`)
	for path, want := range map[string]string{"fifo": "not_regular", "/dev/zero": "not_regular", "/dev/tty": "not_regular", "/proc/self/status": "not_regular", "binary": "binary", "dir": "is_directory", "binary/x": "not_directory", strings.Repeat("x", 300): "bad_path"} {
		if _, k := readFile(t, d, path); k != want {
			t.Errorf("%.20s is %q, want %q", path, k, want)
		}
	}
	list, err := d.ListFiles(t.Context(), "s", &api.FileList{})
	if err != nil || len(list.Entries) != 5 {
		t.Fatalf("listed %+v, %v", list, err)
	}
	for _, e := range list.Entries {
		want := ""
		if strings.HasPrefix(e.Path, "caf") {
			want = base64.StdEncoding.EncodeToString([]byte("caf\xe9"))
		}
		if e.PathBase64 != want {
			t.Errorf("%q has the path_base64 %q", e.Path, e.PathBase64)
		}
	}
	got, err := d.ReadFile(t.Context(), "s", &api.FileRead{PathBase64: base64.StdEncoding.EncodeToString([]byte("caf\xe9"))})
	if err != nil || got.Content != "x" {
		t.Errorf(`by its bytes: got %+v, err = %v, want no error and got.Content == "x"`, got, err)
	}
}

// No program in the box can read the program that serves its files, or change or trace it.
func TestTheFilesProgramIsOutOfReach(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	r := d.Result(t, "s", boxtest.Shell("ls -l /var/lib/boxd/boxfiles; cat /var/lib/boxd/boxfiles >copy; echo >>/var/lib/boxd/boxfiles; rm -f /var/lib/boxd/boxfiles; chmod u+s /var/lib/boxd/boxfiles; mv /var/lib/boxd/boxfiles /tmp"))
	if !strings.HasPrefix(r.Stdout, "-rwx--x--x") || strings.Count(r.Stderr, "\n") != 5 {
		t.Errorf("stdout %q, stderr %q: want it executable, and five refusals", r.Stdout, r.Stderr)
	}
	// Even a user that starts it cannot see it: /proc shows a user only processes it may trace.
	if out := d.Sh(t, "s", "sleep 60 | /var/lib/boxd/boxfiles & p=$!; while [ -e /proc/$p ]; do :; done; kill $p && echo unseen"); out != "unseen\n" {
		t.Errorf(`it is not there: out = %q, want "unseen\n"`, out)
	}
}

// T26, T27: an archive is unpacked completely or not at all.
func TestArchivesAreRefusedWhole(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[files]\narchive_bytes = \"1MiB\"\narchive_file = \"64KiB\"\narchive_entries = 10\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	many := map[string]string{}
	for i := range 11 {
		many[fmt.Sprint(i)] = ""
	}
	for name, tc := range map[string]struct {
		tree map[string]string
		want string
	}{
		"parent":   {map[string]string{"a": "1", "../b": "2"}, "bad_archive"},
		"absolute": {map[string]string{"a": "1", "/tmp/b": "2"}, "bad_archive"},
		"large":    {map[string]string{"a": "1", "b": strings.Repeat("x", 65<<10)}, "too_large"},
		"many":     {many, "too_large"},
	} {
		_, err := d.UploadArchive(t.Context(), "s", client.Upload{Path: "/workspace"}, bytes.NewReader(boxtest.Tar(0o644, tc.tree)))
		if k := fileKind(t, err); k != tc.want {
			t.Errorf("%s: %q, want %q", name, k, tc.want)
		}
	}
	// An upload that is cut off halfway leaves nothing.
	whole := boxtest.Tar(0o644, map[string]string{"a": strings.Repeat("x", 60<<10)})
	hungUp := errors.New("hung up")
	_, err := d.UploadArchive(t.Context(), "s", client.Upload{Path: "/workspace"}, io.MultiReader(bytes.NewReader(whole[:30<<10]), failing{hungUp}))
	if err == nil {
		t.Error("no error for an incomplete archive")
	}
	boxtest.Eventually(t, "no part of the archive is left", func() bool { return d.Sh(t, "s", "ls -A /workspace; ls -d /tmp/b 2>/dev/null; true") == "" })
	// Existing files are not overwritten unless requested.
	d.Sh(t, "s", "echo mine >a")
	_, err = d.UploadArchive(t.Context(), "s", client.Upload{Path: "/workspace"}, bytes.NewReader(boxtest.Tar(0o644, map[string]string{"a": "1", "b": "2"})))
	if k := fileKind(t, err); k != "exists" {
		t.Errorf(`something in the way: k = %q, want "exists"`, k)
	}
	if got := d.Sh(t, "s", "cat a; ls -A"); got != "mine\na\n" {
		t.Errorf(`the workspace has %q, want "mine\na\n"`, got)
	}
	if _, err = d.UploadArchive(t.Context(), "s", client.Upload{Path: "/workspace", Overwrite: true}, bytes.NewReader(boxtest.Tar(0o644, map[string]string{"a": "1", "b": "2"}))); err != nil {
		t.Error(err)
	}
	if got := d.Sh(t, "s", "cat a; ls -A"); got != "1a\nb\n" {
		t.Errorf(`the workspace has %q, want "1a\nb\n"`, got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// T20: a program that renames concurrently leads no file operation out of the box, and none hangs.
func TestARenamerGetsNobodyOut(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "mkdir d; echo inside >d/file; ln -s /etc swap")
	line := "while :; do mv -T d x; mv -T swap d; mv -T x swap; mv -T d x; mv -T swap d; mv -T x swap; done 2>/dev/null"
	d.NewProcess(t, "s", "renamer", &api.ProcessRequest{Command: &line})
	for range 30 {
		if got, k := readFile(t, d, "d/file"); got != "" && got != "inside\n" {
			t.Fatalf("read %q %s", got, k)
		}
		_, err := d.WriteFile(t.Context(), "s", &api.FileWrite{Path: "d/new", Content: "x", NoParents: true})
		fileKind(t, err)
		_, err = d.UploadArchive(t.Context(), "s", client.Upload{Path: "d", Overwrite: true}, bytes.NewReader(boxtest.Tar(0o644, map[string]string{"sub/a": "1"})))
		fileKind(t, err)
		err = d.RemoveFile(t.Context(), "s", &api.FileRemove{Path: "d/sub", Recursive: true})
		fileKind(t, err)
	}
}

// The limits of a session apply to file operations, and the answers say so.
func TestFilesObeyTheSession(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t, "[files]\nmax_content = \"1MiB\"\n")
	d.NewSession(t, api.SessionRequest{ID: "s"})
	_, err := d.WriteFile(t.Context(), "s", &api.FileWrite{Path: "f", Content: strings.Repeat("x", 1<<20+1)})
	boxtest.Refused(t, err, 400, "content")
	d.Sh(t, "s", "head -c 3000000 /dev/zero | tr '\\0' x >large")
	got, err := d.ReadFile(t.Context(), "s", &api.FileRead{Path: "large", MaxBytes: 1 << 20})
	if err != nil || len(got.Content) != 1<<20 || got.TruncatedBy != "bytes" || got.NextByteOffset != 1<<20 {
		t.Errorf("read %d bytes, %v", len(got.Content), err)
	}
	_, err = d.EditFile(t.Context(), "s", &api.FileEdit{Path: "large", Edits: []api.FileReplacement{{Old: "x", New: "y", All: true}}})
	if k := fileKind(t, err); k != "too_large" {
		t.Errorf(`edited: k = %q, want "too_large"`, k)
	}
	if n := len(unpacked(t, d, "large")["large"]); n != 3000000 {
		t.Errorf("fetched %d bytes", n)
	}
	_, err = d.ReadFile(t.Context(), "other", &api.FileRead{Path: "large"})
	boxtest.Refused(t, err, 404, "")
	for _, a := range d.AsUser(t, boxtest.OtherUID, boxtest.Request("POST", "/v1/sessions/s/fs/read", `{"path":"large"}`), boxtest.Request("GET", "/v1/sessions/s/archive", "")) {
		if a.Code != 404 {
			t.Errorf("another caller: a.Code = %d, a.Body = %s, want a.Code == 404", a.Code, a.Body)
		}
	}
}

// If a program makes the workspace inaccessible to itself, the answer says so, and this can be undone.
func TestAClosedWorkspaceCanBeOpened(t *testing.T) {
	t.Parallel()
	d := boxtest.Start(t)
	d.NewSession(t, api.SessionRequest{ID: "s"})
	d.Sh(t, "s", "echo x > f; chmod 000 /workspace")
	r := d.Result(t, "s", boxtest.Shell("true"))
	if f := r.Failure; f == nil || f.Step != "directory" || f.Errno != "EACCES" || !strings.Contains(f.Hint, "boxctl fs chmod") {
		t.Errorf(`r = %s, want f != nil and f.Step == "directory" and f.Errno == "EACCES" and f.Hint containing "boxctl fs chmod"`,
			boxtest.Show(r))
	}
	_, err := d.StatFile(t.Context(), "s", &api.FileStat{Path: "/workspace/f"})
	if e := boxtest.Refused(t, err, 409, ""); !strings.Contains(e.Hint, "boxctl fs chmod s 755 /workspace") {
		t.Errorf(`e = %+v, want e.Hint containing "boxctl fs chmod s 755 /workspace"`, e)
	}
	if r := d.Result(t, "s", api.ExecRequest{Argv: []string{"pwd"}, Cwd: "/"}); r.Stdout != "/\n" {
		t.Errorf(`r = %s, want r.Stdout == "/\n"`, boxtest.Show(r))
	}
	for _, mode := range []string{"", "x", "1777", "8", "-1"} {
		boxtest.Refused(t, d.ChmodFile(t.Context(), "s", &api.FileChmod{Path: "/workspace", Mode: mode}), 400, "mode")
	}
	if err := d.ChmodFile(t.Context(), "s", &api.FileChmod{Path: "/workspace", Mode: "755"}); err != nil {
		t.Fatal(err)
	}
	if err := d.ChmodFile(t.Context(), "s", &api.FileChmod{Path: "f", Mode: "640"}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "stat -c %a . f"); got != "755\n640\n" {
		t.Errorf(`got %s, want "755\n640\n"`, got)
	}
	err = d.ChmodFile(t.Context(), "s", &api.FileChmod{Path: "/etc/passwd", Mode: "666"})
	if got := boxtest.StatusOf(err); got < 400 || got > 499 {
		t.Errorf("err = %v, want got >= 400 and got <= 499", err)
	}
}
