// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/relay/actionrpc/wire"
)

const most = 100_000

func putUpload(t *testing.T, s *wire.Uploads, key string, index, amount any, data string) string {
	t.Helper()
	return putText(t, s, fmt.Sprintf(`{"file_key":%q,"file_length":1,"chunk_size":1,"chunk_index":%v,"chunk_amount":%v,"chunk_base64":%q}`, key, index, amount, base64.StdEncoding.EncodeToString([]byte(data))))
}

func putText(t *testing.T, s *wire.Uploads, text string) string {
	t.Helper()
	fields, ok := wire.ObjectOf(json.RawMessage(text))
	if !ok {
		t.Fatal(text)
	}
	if err := s.Put(fields, most); err != nil {
		return err.Error()
	}
	return ""
}

func TestAFileComesInPiecesAndIsTakenOnce(t *testing.T) {
	t.Parallel()
	s := wire.NewUploads(wire.NewUploadBudget())
	defer s.Close()
	for i, data := range []string{"stale", "one ", "two ", "three"} {
		if got := putUpload(t, s, "a.zip", max(i-1, 0), 3, data); got != "" {
			t.Fatal(got)
		}
	}
	f, ok := s.Take("a.zip")
	if !ok {
		t.Fatal("the upload is missing")
	}
	defer f.Close()
	if text, err := io.ReadAll(f); err != nil || string(text) != "one two three" {
		t.Errorf(`text = %q, err = %v, want no error and text == "one two three"`, text, err)
	}
	if _, again := s.Take("a.zip"); again {
		t.Error("the upload could be taken twice")
	}
	if got := putUpload(t, s, "empty", 0, 1, ""); got != "" {
		t.Error(got)
	}
	if f, ok := s.Take("empty"); !ok {
		t.Error("the empty upload is missing")
	} else {
		f.Close()
	}
}

func TestPiecesAreRefusedInTheWordsOfTheReference(t *testing.T) {
	t.Parallel()
	s := wire.NewUploads(wire.NewUploadBudget())
	defer s.Close()
	big := strings.Repeat("x", 16<<10)
	for _, tc := range []struct{ got, want string }{
		{putUpload(t, s, "../x", 0, 1, ""), "ValueError: Invalid file transfer key"},
		{putUpload(t, s, "a..b", 0, 1, ""), "ValueError: Invalid file transfer key"},
		{putUpload(t, s, " a", 0, 1, ""), "ValueError: Invalid file transfer key"},
		{putUpload(t, s, "a", 1, 1, ""), "ValueError: Invalid file chunk position"},
		{putUpload(t, s, "a", -1, 1, ""), "ValueError: Invalid file chunk position"},
		{putUpload(t, s, "a", "true", 2, ""), "ValueError: Invalid file chunk position"},
		{putUpload(t, s, "a", `"0"`, 1, ""), "ValueError: Invalid file chunk position"},
		{putUpload(t, s, "a", 0, 1, big+"x"), "ValueError: File transfer chunk exceeds the protocol limit"},
		{putUpload(t, s, "a", 0, 1, big), ""},
		{putText(t, s, `{"file_key":"a"}`), "KeyError: 'chunk_base64'"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
	if got := putText(t, s, `{"file_key":"a","chunk_index":0,"chunk_amount":1,"chunk_base64":"!"}`); !strings.HasPrefix(got, "Error: ") {
		t.Errorf(`got %q, want got starting with "Error: "`, got)
	}
	last := ""
	for i := 1; i < 10 && last == ""; i++ {
		last = putUpload(t, s, "a", i, 10, big)
	}
	if last != "ValueError: File transfer exceeds the configured size limit" {
		t.Errorf(`last = %q, want "ValueError: File transfer exceeds the configured size limit"`, last)
	}
	for i := range 128 {
		if got := putUpload(t, s, fmt.Sprint("k", i), 0, 1, "x"); got != "" {
			t.Fatalf(`i = %v, got = %v, want got == ""`, i, got)
		}
	}
	if got := putUpload(t, s, "more", 0, 1, "x"); got != "ValueError: Active file transfer capacity reached" {
		t.Errorf(`got %q, want "ValueError: Active file transfer capacity reached"`, got)
	}
	s.Close()
	if got := putUpload(t, s, "late", 0, 1, "x"); got == "" {
		t.Error("no refusal of an upload after the end of its connection")
	}
}

func TestAllConnectionsShareTheUploadBudget(t *testing.T) {
	t.Parallel()
	room := wire.NewUploadBudget()
	var all []*wire.Uploads
	last := ""
	for i := 0; i < 1000 && last == ""; i++ {
		if i%100 == 0 {
			all = append(all, wire.NewUploads(room))
		}
		last = putUpload(t, all[i/100], fmt.Sprint("k", i), 0, 1, "x")
	}
	if last != "ValueError: Active file transfer capacity reached" || len(all) != 6 {
		t.Errorf("%q of %d connections", last, len(all))
	}
	f, ok := all[0].Take("k0")
	if !ok {
		t.Fatal("the upload is missing")
	}
	f.Close()
	if got := putUpload(t, all[5], "again", 0, 1, "x"); got != "" {
		t.Error(got)
	}
	for _, s := range all {
		s.Close()
	}
	next := wire.NewUploads(room)
	defer next.Close()
	for i := range 128 {
		if got := putUpload(t, next, fmt.Sprint("k", i), 0, 1, "x"); got != "" {
			t.Fatalf(`i = %v, got = %v, want got == ""`, i, got)
		}
	}
}

func FuzzPut(f *testing.F) {
	f.Add([]byte(`{"file_key":"a","chunk_index":0,"chunk_amount":1,"chunk_base64":"eA=="}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fields, ok := wire.ObjectOf(text)
		if !ok {
			return
		}
		s := wire.NewUploads(wire.NewUploadBudget())
		defer s.Close()
		_ = s.Put(fields, 10)
	})
}
