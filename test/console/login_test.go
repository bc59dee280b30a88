// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// packaged builds the Debian package of the console.
func packaged(t *testing.T) string {
	t.Helper()
	root, err := boxtest.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "packaging/console.sh"), "deb", boxtest.TempDir(t))
	cmd.Env = append(os.Environ(), "VERSION=9.8.7", "SOURCE_DATE_EPOCH=1700000000", "CGO_ENABLED=0")
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &errs)
	}
	return strings.TrimSpace(string(out))
}

// serveInstalled serves Cockpit in a copy of this host with the package installed, and returns the address of its first page. The
// namespaces of the copy end with the test, and everything in them.
func serveInstalled(t *testing.T, socket string) string {
	t.Helper()
	at := boxtest.FreeAddress(t, "127.0.0.1")
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--",
		"testdata/root.sh", boxtest.TempDir(t), packaged(t), socket, filepath.Join(boxtest.Programs(t), "boxctl"), port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			t.Logf("log of Cockpit:\n%s", log.String())
		}
	})
	boxtest.Eventually(t, "Cockpit answers", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended: %v", err)
		default:
		}
		conn, err := net.Dial("tcp", at)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return "http://" + at + "/"
}

// visit makes a request to Cockpit, with a cookie or login credentials, and returns the answer and the cookie that it sets.
func visit(t *testing.T, address, header, value string) (code int, cookie, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != "" {
		req.Header.Set(header, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	cookie, _, _ = strings.Cut(resp.Header.Get("Set-Cookie"), ";")
	return resp.StatusCode, cookie, string(text)
}

// The package is installed by dpkg, and a person logs in through PAM with a password: then Cockpit has the pages, and acts as that person.
func TestALoginToTheInstalledPackage(t *testing.T) {
	t.Parallel()
	requireBrowser(t)
	requireSources(t)
	built, err := os.ReadFile("../../console/index.html")
	if err != nil {
		t.Fatal(err)
	}
	d := boxtest.Start(t)
	address := serveInstalled(t, d.Socket)
	words := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("anna:"+password))
	}
	if code, _, body := visit(t, address+"cockpit/login", "Authorization", words("wrong")); code != http.StatusUnauthorized {
		t.Errorf("a wrong password: code = %d, body = %s, want code == 401", code, body)
	}
	page := address + "cockpit/@localhost/boxd/index.html"
	if _, _, body := visit(t, page, "", ""); body == string(built) {
		t.Error("the page is served without a login")
	}
	code, cookie, body := visit(t, address+"cockpit/login", "Authorization", words("geheim, ü"))
	var login struct {
		Token string `json:"csrf-token"`
	}
	if err := json.Unmarshal([]byte(body), &login); err != nil || code != http.StatusOK || login.Token == "" {
		t.Fatalf(`the right password: code = %d, body = %s, want no error and code == 200 and login.Token != ""`,
			code, body)
	}
	if code, _, body := visit(t, page, "Cookie", cookie); code != http.StatusOK || body != string(built) {
		t.Errorf("the page: code = %d, body = %s, want code == 200 and body == string(built)", code, body)
	}
	var list struct{ Boxd struct{ Socket string } }
	if _, _, body := visit(t, address+"cockpit/@localhost/manifests.json", "Cookie", cookie); json.Unmarshal([]byte(body), &list) != nil || list.Boxd.Socket != "/run/boxd/boxd.sock" {
		t.Errorf(`the list of packages of Cockpit: body = %s, want json.Unmarshal([]byte(body), &list) == nil and list.Boxd.Socket == "/run/boxd/boxd.sock"`,
			body)
	}
	// What the pages request from the bridge is done as the person.
	channel, err := json.Marshal(map[string]any{"payload": "stream", "spawn": []string{"sh", "-c", "id -un; boxctl run -- echo from a box"}})
	if err != nil {
		t.Fatal(err)
	}
	if code, _, body := visit(t, address+"cockpit/channel/"+login.Token+"?"+base64.StdEncoding.EncodeToString(channel), "Cookie", cookie); body != "anna\nfrom a box\n" {
		t.Errorf(`a program: code = %d, body = %q, want body == "anna\nfrom a box\n"`, code, body)
	}
}
