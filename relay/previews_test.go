// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// A program on a port of a box cannot speak for boxd: headers that only boxd and gateways may set are removed from its answer.
func TestAProgramCannotSetBoxdsResponseHeaders(t *testing.T) {
	t.Parallel()
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{
		"Boxd-Gateway-Refused": {"true"}, "Boxd-Gateway-Owner": {"ci"}, "X-Own": {"1"}, "Alt-Svc": {`h3=":1"`}, "Set-Cookie": {"a=b", "c=d; Domain=example.org", cookie + "=x"},
	}}
	if err := inward(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), resp); err != nil {
		t.Fatal(err)
	}
	if len(resp.Header) != 2 || resp.Header.Get("X-Own") != "1" || len(resp.Header["Set-Cookie"]) != 1 || resp.Header.Get("Set-Cookie") != "a=b" {
		t.Errorf(`resp.Header = %v, want len(resp.Header) == 2 and resp.Header.Get("X-Own") == "1" and len(resp.Header["Set-Cookie"]) == 1 and resp.Header.Get("Set-Cookie") == "a=b"`,
			resp.Header)
	}
}
