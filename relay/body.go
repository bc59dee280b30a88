// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/conns"
)

// Limits of bodies, in bytes.
const (
	MaxBody        = 16 << 20 // of an execution, with its code and input
	maxSessionBody = 1 << 20
	maxSmallBody   = 4 << 10 // of a field or two
)

// decodeBody decodes the JSON body of a request, of at most limit bytes, into v.
func (c *Call) decodeBody(v any, limit int64) error {
	length := c.R.ContentLength // -1: unknown
	if length > limit {
		return tooLong(quantity.Size(length), limit)
	}
	size := length
	if length < 0 {
		size = limit
	}
	release, err := c.Limits.Reserve(c.Context(), size)
	if err != nil {
		return err
	}
	defer release()
	conn := http.NewResponseController(c.W)
	_ = conn.SetReadDeadline(time.Now().Add(conns.BodyPatience)) // every connection has deadlines
	data := bytes.NewBuffer(make([]byte, 0, max(length, 0)+bytes.MinRead))
	_, err = data.ReadFrom(http.MaxBytesReader(c.W, c.R.Body, limit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLong("more", limit)
	}
	if err != nil {
		f := fault.Errorf(fault.Invalid, "read the body: %w", err)
		f.Field, f.Allowed = "body", fmt.Sprintf("as long as Content-Length says, within %v", quantity.Duration(conns.BodyPatience))
		return f
	}
	c.read = true
	_ = conn.SetReadDeadline(time.Time{}) // as above
	if err := decodeStrictly(data.Bytes(), v); err != nil {
		return err
	}
	if err := decodeBase64Into(v); err != nil {
		return err
	}
	c.observe(v)
	return nil
}

func tooLong(size any, limit int64) error {
	return fault.Field("body", size, fmt.Sprintf("at most %v", quantity.Size(limit)))
}
