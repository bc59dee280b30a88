// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"sync"
	"testing"
)

// What sends may read on while the answer is shown, and after: it writes nothing into that.
func TestProgressEndsWhoeverReadsOn(t *testing.T) {
	t.Parallel()
	var shown bytes.Buffer
	p := &imageProgress{r: bytes.NewReader(make([]byte, 10*imageProgressStep)), w: &shown, on: true}
	piece := make([]byte, imageProgressStep)
	if _, err := io.ReadFull(p, piece); err != nil {
		t.Fatal(err)
	}
	var others sync.WaitGroup
	others.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{p}) })
	p.end()
	text := shown.String()
	others.Wait()
	if shown.String() != text || !bytes.HasSuffix(shown.Bytes(), []byte("\r\x1b[K")) {
		t.Errorf("showed %q, and in the end %q", text, shown.String())
	}
}
