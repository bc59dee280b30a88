// SPDX-License-Identifier: Apache-2.0

package tarball

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
)

// Compressed content that becomes more than maxRatio times as long is no archive of anything: gzip comes to about
// a thousand with nothing but zeros. The first bytes are free, since small archives are mostly padding.
const (
	maxRatio  = 200
	freeBytes = 8 << 20
)

// decompress reads what may be compressed.
func decompress(r io.Reader) (io.Reader, error) {
	in := &counter{r: r}
	b := bufio.NewReaderSize(in, 64<<10)
	if head, _ := b.Peek(2); len(head) < 2 || head[0] != 0x1f || head[1] != 0x8b {
		return b, nil
	}
	z, err := gzip.NewReader(b)
	if err != nil {
		return nil, &Refusal{Reason: "not what gzip has compressed, or damaged"}
	}
	return &inflated{z: z, in: in}, nil
}

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

type inflated struct {
	z  io.Reader
	in *counter
	n  int64
}

func (i *inflated) Read(p []byte) (int, error) {
	n, err := i.z.Read(p)
	if i.n += int64(n); i.n > freeBytes && i.n > i.in.n*maxRatio {
		return 0, &Refusal{Reason: fmt.Sprintf("it becomes more than %d times as long when it is decompressed", maxRatio), TooMuch: true}
	}
	return n, err
}
