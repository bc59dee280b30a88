// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// RegistryCredentials say who asks. They are what was given, and nothing else: no file is looked for at the usual places, and no
// helper program is run.
type RegistryCredentials struct {
	Username, Password string
	File               string // as docker login and podman login write it
}

// maxAuthFile bounds a file of credentials.
const maxAuthFile = 1 << 20

// of are those for a repository; none were given: anonymous.
func (c *RegistryCredentials) of(repository name.Repository) (authn.Authenticator, error) {
	switch {
	case c.Username != "":
		return &authn.Basic{Username: c.Username, Password: c.Password}, nil
	case c.File == "":
		return authn.Anonymous, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxAuthFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxAuthFile {
		return nil, fmt.Errorf("%s: more than %d bytes", c.File, maxAuthFile)
	}
	entry, err := findCredentials(data, repository)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	return authn.FromConfig(*entry), nil
}

// findCredentials finds the entry of a repository: the longest name that is the registry's, or begins with it and leads to the
// repository.
func findCredentials(data []byte, repository name.Repository) (*authn.AuthConfig, error) {
	var file struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			Username      string `json:"username"`
			Password      string `json:"password"`
			IdentityToken string `json:"identitytoken"`
			RegistryToken string `json:"registrytoken"`
		} `json:"auths"`
	}
	if json.Unmarshal(data, &file) != nil { // its words could be secrets
		return nil, errors.New("not the JSON of docker login or podman login")
	}
	wanted, best := plainName(repository.Name()), ""
	for key := range file.Auths {
		if k := plainName(key); k == wanted || strings.HasPrefix(wanted, k+"/") {
			if best == "" || len(k) > len(plainName(best)) || len(k) == len(plainName(best)) && key < best {
				best = key
			}
		}
	}
	if best == "" {
		return nil, fmt.Errorf("no entry for %s; its credential helpers are not run", repository.RegistryStr())
	}
	e := file.Auths[best]
	if e.Auth != "" {
		plain, err := base64.StdEncoding.DecodeString(e.Auth)
		user, password, ok := strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		if err != nil || !ok {
			return nil, fmt.Errorf("the entry of %s is not a name and a password in base64", best)
		}
		e.Username, e.Password = user, password
	}
	if e.Username == "" && e.IdentityToken == "" && e.RegistryToken == "" {
		return nil, fmt.Errorf("the entry of %s has no credentials; credential helpers are not run", best)
	}
	return &authn.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken}, nil
}

// plainName is how a registry or repository is compared: Docker Hub has many names.
func plainName(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(key, "/"), "/v1"), "/v2")
	for _, hub := range []string{"docker.io", "registry-1.docker.io"} {
		if key == hub || strings.HasPrefix(key, hub+"/") {
			return name.DefaultRegistry + strings.TrimPrefix(key, hub)
		}
	}
	return key
}
