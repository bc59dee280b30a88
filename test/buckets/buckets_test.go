// SPDX-License-Identifier: Apache-2.0

// Package buckets_test moves drives between boxd and a real S3 server.
package buckets_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

const secret = "hush-hush-hush"

// gateway is a server of packaging/tools/s3.mod, behind a proxy that can cause failures.
type gateway struct {
	*httptest.Server
	dir     string // of its buckets
	between atomic.Pointer[func(w http.ResponseWriter, r *http.Request, next http.Handler)]
}

func (g *gateway) does(what func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	g.between.Store(&what)
}

func fine(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) }

// program returns the path of the server, already built or built now.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(boxtest.Programs(t), "versitygw")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path = filepath.Join(boxtest.TempDir(t), "versitygw")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-modfile=packaging/tools/s3.mod", "-o", path, "github.com/versity/versitygw/cmd/versitygw")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v: %s", err, out)
	}
	return path
}

func startGateway(t *testing.T) *gateway {
	t.Helper()
	dir := boxtest.TempDir(t)
	g := &gateway{dir: filepath.Join(dir, "data")}
	if err := os.MkdirAll(filepath.Join(g.dir, "results"), 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s3")
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program(t), "--quiet", "--port", socket, "posix", g.dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID=me", "ROOT_SECRET_ACCESS_KEY="+secret)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Log(said.String())
		}
	})
	boxtest.Eventually(t, "the server listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	way := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "s3"})
			r.Out.Host = r.In.Host // the signature covers it
		},
		Transport: &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}
	g.does(fine)
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*g.between.Load())(w, r, way) }))
	t.Cleanup(g.Close)
	return g
}

// bucketTest is a boxd with an S3 server.
type bucketTest struct {
	*testing.T
	boxd   *boxtest.Daemon
	s3     *gateway
	secret string
}

// boxctl runs boxctl and returns its output and whether it succeeded. The output must never contain the secret.
func (s *bucketTest) boxctl(args ...string) (string, bool) {
	s.Helper()
	if len(args) > 1 && args[0] == "drives" && strings.Contains(strings.Join(args, " "), "s3://") {
		args = append([]string{"drives", args[1], "--insecure", "--endpoint", s.s3.URL}, args[2:]...)
	}
	cmd := s.boxd.Boxctl(s, args...)
	cmd.Env = append(cmd.Env, "AWS_ACCESS_KEY_ID=me", "AWS_SECRET_ACCESS_KEY="+s.secret)
	out, err := cmd.CombinedOutput()
	if bytes.Contains(out, []byte(s.secret)) {
		s.Errorf("the output of %q has the secret: out = %s, want out without []byte(s.secret)", args, out)
	}
	return string(out), err == nil
}

// does runs a boxctl that must succeed with this in its output.
func (s *bucketTest) does(says string, args ...string) {
	s.Helper()
	if out, ok := s.boxctl(args...); !ok || !strings.Contains(out, says) {
		s.Fatalf("boxctl %q: %v, %s; want %q", args, ok, out, says)
	}
}

// fails runs a boxctl that must fail with this in its output.
func (s *bucketTest) fails(says string, args ...string) {
	s.Helper()
	if out, ok := s.boxctl(args...); ok || !strings.Contains(out, says) {
		s.Errorf("boxctl %q: %v, %s; want %q", args, ok, out, says)
	}
}

// version returns the newest version of a drive, and whether it is being pushed.
func (s *bucketTest) version(drive string) (api.DriveVersion, bool) {
	s.Helper()
	out, ok := s.boxctl("--json", "drives", "show", drive)
	var d api.Drive
	if !ok || json.Unmarshal([]byte(out), &d) != nil || len(d.Versions) == 0 {
		s.Fatalf("drive %s: out = %s, want ok == true and json.Unmarshal([]byte(out), &d) == nil and len(d.Versions) != 0",
			drive, out)
	}
	return d.Versions[len(d.Versions)-1], d.Push
}

func start(t *testing.T) *bucketTest {
	boxtest.RequireRoot(t)
	return &bucketTest{t, boxtest.Start(t), startGateway(t), secret}
}

// full refuses every write after a number of them.
func full(after int64) func(w http.ResponseWriter, r *http.Request, next http.Handler) {
	var puts atomic.Int64
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodPut && puts.Add(1) > after {
			_, _ = io.Copy(io.Discard, r.Body) // a client that is still sending would miss the answer
			w.WriteHeader(http.StatusInsufficientStorage)
			_, _ = io.WriteString(w, "<Error><Code>XMinioStorageFull</Code><Message>no room</Message></Error>")
			return
		}
		next.ServeHTTP(w, r)
	}
}

// A version is uploaded to a bucket despite failures, resuming where it was, and comes back unchanged.
func TestAVersionGoesToABucketAndBack(t *testing.T) {
	t.Parallel()
	s := start(t)
	from := boxtest.TempDir(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	for name, text := range map[string]string{"a.txt": "one", "sub/ü b+%41&#": "two", "none": "", "large": string(large), "run.sh": "#!/bin/sh\n"} {
		if err := os.MkdirAll(filepath.Join(from, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{os.Mkdir(filepath.Join(from, "empty"), 0o755), os.Chmod(filepath.Join(from, "run.sh"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.does("1 sha256:", "drives", "fill", "me/data", from)
	was, _ := s.version("me/data")

	s.secret = "wrong-wrong-wrong"
	s.fails("or --credentials", "drives", "push", "me/data", "s3://results/run")
	s.secret = secret
	s.fails("there is no such bucket", "drives", "push", "me/data", "s3://other/run")
	s.s3.does(full(2))
	s.fails("me/data@1 is not pushed, and still in boxd", "drives", "push", "me/data", "s3://results/run")
	if v, _ := s.version("me/data"); !v.PushedAt.IsZero() {
		t.Error("boxd lists a version as pushed that is not")
	}
	s.s3.does(fine)
	s.does("me/data@1 s3://results/run: 4 files sent, 2 present", "drives", "push", "me/data", "s3://results/run")
	s.does(": 0 files sent, 6 present", "drives", "push", "me/data@1", "s3://results/run/")
	if v, _ := s.version("me/data"); v.PushedAt.IsZero() {
		t.Error("boxd does not list the version as pushed")
	}
	if got, err := os.ReadFile(filepath.Join(s.s3.dir, "results/run/large")); err != nil || !bytes.Equal(got, large) {
		t.Errorf("the object has %d bytes, %v", len(got), err)
	}

	var cuts atomic.Int64
	s.s3.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/large") || cuts.Add(1) > 1 {
			next.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(&cutter{w, 1000}, r)
	})
	s.does("1 "+was.Digest, "drives", "fill", "me/back", "s3://results/run")
	if cuts.Load() != 2 {
		t.Errorf("the large object was requested %d times", cuts.Load())
	}
	s.s3.does(fine)
	s.does("2 sha256:", "drives", "fill", "--add", "--into", "more", "me/back", "s3://results/run/sub")
	s.fails("there are more than 1000 bytes", "drives", "fill", "--max-size", "1000B", "me/large", "s3://results/run")
	for _, name := range []string{"a", "A"} {
		if err := os.WriteFile(filepath.Join(s.s3.dir, "results", "twins-"+name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s.fails("in case alone", "drives", "fill", "me/twins", "s3://results")
	s.fails("there is nothing", "drives", "fill", "me/nothing", "s3://results/nothing")
	s.fails("no drive", "drives", "show", "me/twins")
	if strings.Contains(s.boxd.Log(), secret) {
		t.Error("the log has the secret")
	}
}

// A file larger than a part is uploaded in parts; a failed multipart upload is aborted.
func TestALargeFileGoesToABucketInParts(t *testing.T) {
	t.Parallel()
	s := start(t)
	from := boxtest.TempDir(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), 11<<16) // 11 MiB
	if err := os.WriteFile(filepath.Join(from, "large"), large, 0o755); err != nil {
		t.Fatal(err)
	}
	s.does("1 sha256:", "drives", "fill", "me/large", from)
	var parts, given atomic.Int64
	s.s3.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.Method == http.MethodDelete && r.URL.Query().Has("uploadId"):
			given.Add(1)
		case r.URL.Query().Has("partNumber") && parts.Add(1) > 1:
			full(0)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	})
	push := []string{"drives", "push", "--part-size", "5MiB", "me/large", "s3://results/parts"}
	s.fails("me/large@1 is not pushed", push...)
	if given.Load() != 1 {
		t.Errorf("the upload was aborted %d times", given.Load())
	}
	parts.Store(0)
	s.s3.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Has("partNumber") {
			parts.Add(1)
		}
		next.ServeHTTP(w, r)
	})
	s.does(": 1 files sent, 0 present", push...)
	s.does(": 0 files sent, 1 present", push...)
	if got, err := os.ReadFile(filepath.Join(s.s3.dir, "results/parts/large")); err != nil || !bytes.Equal(got, large) || parts.Load() != 3 {
		t.Errorf("the object has %d bytes in %d parts, %v", len(got), parts.Load(), err)
	}
	v, _ := s.version("me/large")
	s.does("1 "+v.Digest, "drives", "fill", "me/back", "s3://results/parts")
}

// cutter breaks an answer off.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		_, _ = c.ResponseWriter.Write(p[:min(len(p), 1000)])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// Results of a box are not lost, whatever happens to the bucket and to the box.
func TestResultsReachABucketInTheEnd(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.does("", "create", "work")
	s.does("", "exec", "--output-version", "v1", "work", "--", "sh", "-c", "echo made > $OUTPUT_DIR/result")
	s.s3.does(full(0))
	s.fails("me/results@1 is not pushed, and still in boxd", "drives", "promote", "--push-to", "s3://results/v1", "--output-version", "v1", "me/results", "work")
	s.does("", "rm", "work")
	s.boxd.Kill()
	s.boxd.Restart()
	s.does("", "drives", "keep", "--versions", "1", "me/results")
	newer := boxtest.TempDir(t)
	if err := os.WriteFile(filepath.Join(newer, "other"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.does("2 sha256:", "drives", "fill", "me/results", newer)
	s.s3.does(fine)
	s.does("1 files sent", "drives", "push", "me/results@1", "s3://results/v1")
	if got, err := os.ReadFile(filepath.Join(s.s3.dir, "results/v1/result")); err != nil || string(got) != "made\n" {
		t.Errorf(`got %q, err = %v, want no error and got == "made\n"`, got, err)
	}
	boxtest.Eventually(t, "the version that was pushed is removed", func() bool {
		_, ok := s.boxctl("drives", "index", "me/results@1")
		return !ok
	})
}
