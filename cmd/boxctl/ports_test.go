// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestWhereToListen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		at   portPlace
		port uint16
	}{
		"8080:80": {portPlace{"tcp", "127.0.0.1:8080"}, 80}, "80": {portPlace{"tcp", "127.0.0.1:80"}, 80}, "0:80": {portPlace{"tcp", "127.0.0.1:0"}, 80},
		"127.0.0.2:1:65535": {portPlace{"tcp", "127.0.0.2:1"}, 65535}, "[::1]:8080:80": {portPlace{"tcp", "[::1]:8080"}, 80}, "./a:b:80": {portPlace{"unix", "./a:b"}, 80},
		// refused
		"": {}, ":": {}, "80:": {}, ":80": {}, "8080:0": {}, "8080:65536": {}, "65536:80": {}, "0.0.0.0:8080:80": {}, "example.org:8080:80": {}, "[::]:1:2": {}, "192.0.2.1:1:2": {},
		"8080:http": {}, "-1:80": {}, "::1:80": {},
	} {
		at, port, err := parseForward(text)
		if at != want.at && err == nil || port != want.port && err == nil || (err != nil) != (want.port == 0) {
			t.Errorf("%q: at = %v, port = %d, err = %v, want (at == %v or an error) and (port == %v or an error) and (err != nil) == (want.port == 0)",
				text, at, port, err, want.at, want.port)
		}
	}
}
