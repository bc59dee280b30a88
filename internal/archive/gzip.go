// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
)

// maxRatio is how many times longer content may become when decompressed. Real content stays below that: gzip reaches about a
// thousand only with all zeros.
const maxRatio = 200

// freeBytes of any archive are exempt, since small archives are mostly padding.
const freeBytes = 8 << 20

// decompress reads content that may be compressed.
func decompress(r io.Reader) (io.Reader, error) {
	in := &Counter{R: r}
	b := bufio.NewReaderSize(in, 64<<10)
	if head, _ := b.Peek(2); len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, &Refusal{Reason: "not gzip data, or damaged"}
	}
	return &Inflated{Z: z, In: in, Free: freeBytes}, nil
}

// Counter counts the bytes that are read.
type Counter struct {
	R io.Reader
	n int64
}

// Read reads from R.
func (c *Counter) Read(p []byte) (int, error) {
	n, err := c.R.Read(p)
	c.n += int64(n)
	return n, err
}

// Inflated reads decompressed content, as long as it is at most 200 times longer than the compressed content.
type Inflated struct {
	Z    io.Reader // the decompressor
	In   *Counter  // what that reads
	Free int64     // bytes exempt from the ratio
	n    int64
}

// Read reads from Z. A *Refusal: it is too much.
func (i *Inflated) Read(p []byte) (int, error) {
	n, err := i.Z.Read(p)
	if i.n += int64(n); i.n > i.Free && i.n > i.In.n*maxRatio {
		return 0, &Refusal{Reason: fmt.Sprintf("it expands more than %d times when it is decompressed", maxRatio), TooMuch: true}
	}
	return n, err
}
