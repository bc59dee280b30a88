// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// object is an object in the memory of a server.
type object struct {
	data []byte
	meta http.Header
}

// server is a bucket in memory that implements the part of S3 that this package uses, unless between does something else.
// test/buckets checks that against a real server.
type server struct {
	*httptest.Server
	mu      sync.Mutex
	objects map[string]object // by key
	puts    int
	between func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

func serve(t testing.TB) *server {
	s := &server{objects: map[string]object{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		between := s.between
		s.mu.Unlock()
		if between != nil {
			between(w, r, http.HandlerFunc(s.answer))
			return
		}
		s.answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// does makes a server behave differently, or, with nil, normally.
func (s *server) does(what func(w http.ResponseWriter, r *http.Request, next http.Handler)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.between = what
}

func (s *server) answer(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := strings.TrimPrefix(r.URL.Path, "/bucket/")
	is, ok := s.objects[key]
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Has("list-type"):
		s.list(w, r.URL.Query())
	case r.Method == http.MethodPut:
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		s.put(key, data, r.Header)
		w.Header().Set("ETag", etag(data))
	case r.Method == http.MethodHead && key == "/bucket":
	case !ok:
		fail(w, http.StatusNotFound, "NoSuchKey", "there is none")
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != etag(is.data):
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed", "it is another")
	default:
		for name, values := range is.meta {
			if strings.HasPrefix(name, "X-Amz-Meta-") {
				w.Header()[name] = values
			}
		}
		w.Header().Set("ETag", etag(is.data))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(is.data))
	}
}

func (s *server) put(key string, data []byte, meta http.Header) {
	s.objects[key] = object{data, meta}
	s.puts++
}

func etag(data []byte) string { return `"` + digest(data)[:32] + `"` }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func fail(w http.ResponseWriter, status int, code, text string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, text)
}

// list answers in pages of two.
func (s *server) list(w http.ResponseWriter, q url.Values) {
	type entry struct {
		Key  string
		Size int
		ETag string
	}
	answer := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []entry
	}{}
	keys := slices.Sorted(maps.Keys(s.objects))
	at, _ := strconv.Atoi(q.Get("continuation-token"))
	for ; at < len(keys); at++ {
		if !strings.HasPrefix(keys[at], q.Get("prefix")) {
			continue
		}
		if len(answer.Contents) == 2 {
			answer.IsTruncated, answer.NextContinuationToken = true, strconv.Itoa(at)
			break
		}
		data := s.objects[keys[at]].data
		answer.Contents = append(answer.Contents, entry{keys[at], len(data), etag(data)})
	}
	_ = xml.NewEncoder(w).Encode(answer)
}

// env returns an environment with credentials.
func env(more map[string]string) func(string) string {
	all := map[string]string{"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "hush-hush"}
	maps.Copy(all, more)
	return func(name string) string { return all[name] }
}

func (s *server) open(t *testing.T, change func(o *BucketOptions)) *Bucket {
	t.Helper()
	o := &BucketOptions{Address: "s3://bucket/in/here", Endpoint: s.URL, Insecure: true, Pause: time.Millisecond, Getenv: env(nil)}
	if change != nil {
		change(o)
	}
	b, err := OpenBucket(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// some returns files with their content: a path with ! at its end is executable.
func some(contents map[string]string) []File {
	var list []File
	for _, name := range slices.Sorted(maps.Keys(contents)) {
		text := contents[name]
		bare, program := strings.CutSuffix(name, "!")
		list = append(list, File{Path: bare, Size: int64(len(text)), SHA256: digest([]byte(text)), Program: program, Content: strings.NewReader(text)})
	}
	return list
}

func uncounted(int64) {}

// fetched returns what a fetch returns: executable files with ! after their names.
func (b *Bucket) fetched(t *testing.T) (map[string]string, error) {
	t.Helper()
	list, _, err := b.List(t.Context(), 1<<30)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	if err := b.Fetch(t.Context(), list, &archive, uncounted); err != nil {
		return nil, err
	}
	got := map[string]string{}
	for r := tar.NewReader(&archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := h.Name
		if h.Mode&0o111 != 0 && h.Typeflag == tar.TypeReg {
			name += "!"
		}
		got[name] = string(text)
	}
}

func project() map[string]string {
	return map[string]string{"a.txt": "one", "sub/b": strings.Repeat("two", 5000), "run.sh!": "#!/bin/sh\n", "none": "", "empty/": "", "sp ace/ü%41+?&#": "x"}
}

// A push can be fetched unchanged, existing objects are not sent again, and objects of others are not replaced.
func TestAPushIsWhatIsFetched(t *testing.T) {
	t.Parallel()
	s := serve(t)
	b := s.open(t, nil)
	want := project()
	for _, already := range []int{0, len(want)} {
		var counted atomic.Int64
		done, err := b.Push(t.Context(), some(want), false, func(n int64) { counted.Add(n) })
		if err != nil || done.Sent != len(want)-already || done.There != already || s.puts != len(want) || counted.Load() < 15000 {
			t.Fatalf("%+v, %d puts, %d bytes, %v", done, s.puts, counted.Load(), err)
		}
	}
	if got, err := b.fetched(t); err != nil || !maps.Equal(got, want) {
		t.Errorf("fetched %q, %v", got, err)
	}
	s.put("in/hereafter", []byte("another prefix"), nil)
	want["a.txt"], want["z"] = "changed", "new"
	before := s.puts
	if _, err := b.Push(t.Context(), some(want), false, uncounted); err == nil || !strings.Contains(err.Error(), `1 of these names with other content, such as "a.txt"`) || s.puts != before {
		t.Errorf("other content: %v, %d puts", err, s.puts-before)
	}
	if done, err := b.Push(t.Context(), some(want), true, uncounted); err != nil || done.Sent != 2 {
		t.Errorf("replaced: done = %+v, err = %v, want no error and done.Sent == 2", done, err)
	}
	if got, err := b.fetched(t); err != nil || !maps.Equal(got, want) {
		t.Errorf("fetched %q, %v", got, err)
	}
}

// Requests that fail for a while are retried; after a longer failure, another push resumes where it was.
func TestAPushGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	s := serve(t)
	b := s.open(t, nil)
	want := project()
	var mu sync.Mutex
	failures, allowed := 0, 2
	s.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		if r.Method == http.MethodPut {
			allowed--
		}
		if allowed < 0 {
			failures++
			cut := failures%2 == 0
			mu.Unlock()
			if cut {
				panic(http.ErrAbortHandler)
			}
			fail(w, http.StatusServiceUnavailable, "SlowDown", "not now")
			return
		}
		mu.Unlock()
		next.ServeHTTP(w, r)
	})
	_, err := b.Push(t.Context(), some(want), false, uncounted)
	mu.Lock() // abandoned requests may still be running
	failed := failures
	mu.Unlock()
	if err == nil || failed < 2 {
		t.Fatalf("it has not failed: %v after %d failures", err, failed)
	}
	s.does(nil)
	s.mu.Lock()
	arrived := len(s.objects)
	s.mu.Unlock()
	done, err := b.Push(t.Context(), some(want), false, uncounted)
	if err != nil || arrived != 2 || done.There != arrived || done.Sent != len(want)-arrived {
		t.Errorf("after %d files: done = %+v, err = %v, want no error and arrived == 2 and done.There == arrived and done.Sent == len(want) - arrived",
			arrived, done, err)
	}
	once := map[string]bool{}
	s.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		again := once[r.Method+r.URL.Path]
		once[r.Method+r.URL.Path] = true
		mu.Unlock()
		if !again {
			fail(w, http.StatusInternalServerError, "InternalError", "try again")
			return
		}
		next.ServeHTTP(w, r)
	})
	other := s.open(t, func(o *BucketOptions) { o.Address = "s3://bucket/other/" })
	if done, err := other.Push(t.Context(), some(map[string]string{"a": "1", "b": "2"}), false, uncounted); err != nil || done.Sent != 2 {
		t.Errorf("every request once in vain: done = %+v, err = %v, want no error and done.Sent == 2", done, err)
	}
}

// A server's statements about its objects are not trusted.
func TestABucketServersClaimsAreVerified(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 200_000)
	get := func(r *http.Request) bool { return r.Method == http.MethodGet && !r.URL.Query().Has("list-type") }
	for what, tc := range map[string]struct {
		does    func(w http.ResponseWriter, r *http.Request, next http.Handler)
		message string // "": it arrives all the same
		push    bool
	}{
		"it cuts bodies, and goes on where it has stopped": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !get(r) || r.Header.Get("Range") > "bytes=2" {
				next.ServeHTTP(w, r)
				return
			}
			cut(w, r, next, 1_100_000)
		}},
		"it cuts bodies, again and again": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if !get(r) {
				next.ServeHTTP(w, r)
				return
			}
			cut(w, r, next, 10)
		}, message: "unexpected EOF"},
		"it does not go on where it has stopped": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if get(r) && r.Header.Get("Range") == "" {
				cut(w, r, next, 1000)
				return
			}
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		}, message: "does not resume where it stopped"},
		"it has other content": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			changed(w, r, next, func(body []byte) []byte { return bytes.Replace(body, []byte("0123"), []byte("9999"), 1) })
		}, message: "the digest differs"},
		"the object has changed since the list": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if get(r) {
				r.Header.Set("If-Match", `"other"`)
			}
			next.ServeHTTP(w, r)
		}, message: "PreconditionFailed"},
		"its list has no end": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if get(r) {
				next.ServeHTTP(w, r)
				return
			}
			_, _ = io.WriteString(w, "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></ListBucketResult>")
		}, message: "or no end"},
		"its list goes nowhere": {does: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			_, _ = io.WriteString(w, "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
		}, message: "without a token to continue"},
		"its list is endless": {does: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			_, _ = io.WriteString(w, "<ListBucketResult>")
			for {
				if _, err := w.Write(bytes.Repeat([]byte("<a></a>"), 1<<15)); err != nil {
					return
				}
			}
		}, message: "more than 8388608 bytes"},
		"its list is no XML": {does: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			_, _ = io.WriteString(w, "<ListBucketResult><Contents><Key>\x01</Key>")
		}, message: "deserialization failed"},
		"it is silent": {does: func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }, message: "is silent for"},
		"it leads elsewhere": {does: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
		}, message: "TemporaryRedirect"},
		"its words move the cursor, and know the secret": {does: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			fail(w, http.StatusForbidden, "AccessDenied", "a\u202eb hush-hush &#10;"+strings.Repeat("d", 5000))
		}, message: "AccessDenied: ab … "},
		"it forgets what it has taken": {does: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Method == http.MethodPut {
				return
			}
			next.ServeHTTP(w, r)
		}, message: "does not return the same object", push: true},
		"it knows nobody": {does: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusForbidden)
		}, message: "or --credentials", push: true},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := serve(t)
			if _, err := s.open(t, nil).Push(t.Context(), some(map[string]string{"large": large}), false, uncounted); err != nil {
				t.Fatal(err)
			}
			b := s.open(t, func(o *BucketOptions) {
				if strings.HasPrefix(tc.message, "is silent") {
					o.Patience = 100 * time.Millisecond
				}
			})
			s.does(tc.does)
			var err error
			if tc.push {
				_, err = b.Push(t.Context(), some(map[string]string{"more": "x"}), false, uncounted)
			} else {
				var got map[string]string
				if got, err = b.fetched(t); err == nil && got["large"] != large {
					t.Errorf("%d bytes arrived", len(got["large"]))
				}
			}
			switch {
			case tc.message == "" && err != nil:
				t.Error(err)
			case tc.message != "" && (err == nil || !strings.Contains(err.Error(), tc.message) || len(err.Error()) > 800 || strings.ContainsAny(err.Error(), "\x1b\n\u202e") || strings.Contains(err.Error(), "hush")):
				t.Errorf("%v, want %q", err, tc.message)
			}
		})
	}
}

// changed answers with a modified body for an object.
func changed(w http.ResponseWriter, r *http.Request, next http.Handler, change func([]byte) []byte) {
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, r)
	maps.Copy(w.Header(), answer.Header())
	w.WriteHeader(answer.Code)
	_, _ = w.Write(change(answer.Body.Bytes()))
}

// cut ends an answer after n bytes of what it has announced.
func cut(w http.ResponseWriter, r *http.Request, next http.Handler, n int) {
	changed(w, r, next, func(body []byte) []byte { return body[:min(n, len(body))] })
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// A bucket may contain any keys: if some cannot be file names, all of these are reported and nothing is fetched.
func TestKeysThatCannotBeFiles(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		keys    []string
		message string
	}{
		{[]string{"in/here/../../etc/passwd"}, ". or .. as a part"},
		{[]string{"in/here/./a"}, ". or .. as a part"},
		{[]string{"in/here//etc/passwd"}, "a part that is empty, or an absolute path"},
		{[]string{"in/here/a//"}, "a part that is empty"},
		{[]string{"in/here/a\\b"}, "control characters"},
		{[]string{"in/here/a\tb"}, "control characters"},
		{[]string{"in/here/" + strings.Repeat("x", 256)}, "a part of more than 255 bytes"},
		{[]string{"in/here/a", "in/here/A"}, "in case alone"},
		{[]string{"in/here/dir/a", "in/here/DIR/b"}, "in case alone"},
		{[]string{"in/here/a", "in/here/a/b"}, "is a file and a directory"},
		{[]string{"in/here/a/", "in/here/a"}, "is a file and a directory"},
		{[]string{"in/here/../a", "in/here/../b", "in/here/ok"}, "2 objects cannot be files"},
		{[]string{"in/here/../1", "in/here/../2", "in/here/../3", "in/here/../4", "in/here/../5", "in/here/../6"}, "6 objects cannot be files"},
		{nil, "there is nothing"},
		{[]string{"in/here/"}, "there is nothing"},
	} {
		s := serve(t)
		for _, key := range tc.keys {
			s.put(key, nil, nil)
		}
		got := false
		s.does(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			got = got || !r.URL.Query().Has("list-type")
			next.ServeHTTP(w, r)
		})
		if _, err := s.open(t, nil).fetched(t); err == nil || !strings.Contains(err.Error(), tc.message) || got {
			t.Errorf("%q: %v, want %q, fetched %v", tc.keys, err, tc.message, got)
		}
	}
	s := serve(t)
	s.put("in/here/a", make([]byte, 100), nil)
	if _, _, err := s.open(t, nil).List(t.Context(), 99); err == nil || !strings.Contains(err.Error(), "more than 99 bytes") {
		t.Errorf(`too much: err = %v, want an error containing "more than 99 bytes"`, err)
	}
	s.does(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		_, _ = io.WriteString(w, "<ListBucketResult><Contents><Key>elsewhere</Key><Size>1</Size><ETag>x</ETag></Contents></ListBucketResult>")
	})
	if _, _, err := s.open(t, nil).List(t.Context(), 99); err == nil || !strings.Contains(err.Error(), "is not below the prefix") {
		t.Errorf(`elsewhere: err = %v, want an error containing "is not below the prefix"`, err)
	}
	for _, path := range []string{"../a", "/a", "a//b", "a\nb", strings.Repeat("d/", 600) + "a"} {
		if _, err := s.open(t, nil).Push(t.Context(), some(map[string]string{path: ""}), false, uncounted); err == nil {
			t.Errorf("%.40q was pushed", path)
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, key := range []string{"in/a", "in/../a", "in//", "in/A/b\nin/a", "in/a\x00", "in/a/\nin/a/b"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, keys string) {
		b := &Bucket{name: "bucket", prefix: "in/"}
		var list []Object
		for key := range strings.SplitSeq(keys, "\n") {
			list = append(list, Object{Name: key})
		}
		n := len(list)
		if b.named(list) != nil {
			return
		}
		for _, o := range list[:n] {
			if o.Name != "" && !filepath.IsLocal(o.Name) || strings.ContainsRune(o.Name, 0) {
				t.Errorf("%q became %q", keys, o.Name)
			}
		}
	})
}

func TestAddressesAndEndpoints(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		change  func(o *BucketOptions)
		message string
	}{
		{func(o *BucketOptions) { o.Address = "s3://ab/x" }, "3 to 63"},
		{func(o *BucketOptions) { o.Address = "s3://Bucket/x" }, "3 to 63"},
		{func(o *BucketOptions) { o.Address = "s3://key:secret@bucket/x" }, "3 to 63"},
		{func(o *BucketOptions) { o.Address = "bucket/x" }, "s3://BUCKET/PREFIX"},
		{func(o *BucketOptions) { o.Address = "s3://bucket/a/../b" }, "the prefix has"},
		{func(o *BucketOptions) { o.Endpoint = "http://s3.example" }, "no TLS"},
		{func(o *BucketOptions) { o.Endpoint = "https://me:hush@s3.example" }, "has a user"},
		{func(o *BucketOptions) { o.Endpoint = "ftp://s3.example" }, "want a URL"},
		{func(o *BucketOptions) { o.Endpoint = "s3.example" }, "want a URL"},
		{func(o *BucketOptions) { o.Getenv = env(map[string]string{"AWS_ENDPOINT_URL": "nonsense"}) }, "want a URL"},
		{func(o *BucketOptions) { o.Getenv = env(map[string]string{"AWS_SECRET_ACCESS_KEY": ""}) }, "set both or neither"},
		{func(o *BucketOptions) { o.Getenv = func(string) string { return "" } }, "no credentials for the bucket"},
		{func(o *BucketOptions) { o.Credentials = "/nonexistent" }, "no such file"},
		{func(o *BucketOptions) { o.Address = "s3://bucket" }, ""},
		{func(o *BucketOptions) { o.Endpoint = "http://s3.example"; o.Insecure = true }, ""},
	} {
		o := &BucketOptions{Address: "s3://bucket/x/y/", Getenv: env(nil)}
		tc.change(o)
		b, err := OpenBucket(o)
		if err == nil {
			b.Close()
		}
		if (err == nil) != (tc.message == "") || err != nil && (!strings.Contains(err.Error(), tc.message) || strings.Contains(err.Error(), "hush")) {
			t.Errorf("%+v: %v, want %q", o, err, tc.message)
		}
	}
}

func TestCredentialsOfFiles(t *testing.T) {
	t.Parallel()
	const good = "# mine\n[other]\naws_access_key_id = no\n[default]\naws_access_key_id = me\nAWS_Secret_Access_Key=a=b/c\nregion = x y\n"
	for _, tc := range []struct{ text, message string }{
		{good, ""},
		{"aws_access_key_id=me\naws_secret_access_key=a=b/c", ""},
		{good + "aws_session_token = t", ""},
		{"", "want aws_access_key_id"},
		{"[other]\n" + "aws_access_key_id=me\naws_secret_access_key=secret", "want aws_access_key_id"},
		{"aws_access_key_id=me", "want aws_access_key_id"},
		{"aws_access_key_id=me\nsecret", "line 2 is not"},
		{good + "aws_access_key_id = secret", "line 8 repeats a key"},
		{"aws_secret_access_key = sec ret", "line 1 has no valid value"},
		{"aws_secret_access_key = secret\x1b", "line 1 has no valid value"},
		{strings.Repeat("#", maxCredentials+1), "more than"},
	} {
		who, err := parseCredentials([]byte(tc.text))
		if (err == nil) != (tc.message == "") || err != nil && (!strings.Contains(err.Error(), tc.message) || strings.Contains(err.Error(), "secret ")) || err == nil && (who.AccessKeyID != "me" || who.SecretAccessKey != "a=b/c") {
			t.Errorf("%.80q: %v, want %q", tc.text, err, tc.message)
		}
	}
	file := filepath.Join(t.TempDir(), credentialFile)
	if err := os.WriteFile(file, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: false, 0o604: false, 0o620: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		for _, o := range []*BucketOptions{
			{Credentials: file, Getenv: env(nil)},
			{Getenv: env(map[string]string{"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "CREDENTIALS_DIRECTORY": filepath.Dir(file)})},
		} {
			if who, err := o.who(); (err == nil) != ok || ok && who.AccessKeyID != "me" || !ok && !strings.Contains(err.Error(), "other users can access it") {
				t.Errorf(`mode %o: err = %v, want (err == nil) == ok and (ok == false or who.AccessKeyID == "me") and (ok == true or err containing "other users can access it")`,
					mode, err)
			}
		}
	}
	if _, err := readCredentials(filepath.Dir(file)); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf(`a directory: err = %v, want an error containing "is no file"`, err)
	}
}

func FuzzCredentials(f *testing.F) {
	f.Add([]byte("[default]\naws_access_key_id = a\naws_secret_access_key = b"))
	f.Add([]byte("aws_session_token\n[\n=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		who, err := parseCredentials(data)
		if err == nil && (who.AccessKeyID == "" || who.SecretAccessKey == "" || strings.ContainsAny(who.AccessKeyID+who.SecretAccessKey+who.SessionToken, "\r\n \x00")) {
			t.Errorf("%q became credentials", data)
		}
	})
}
