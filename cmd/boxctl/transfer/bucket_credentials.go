// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// credentialFile is what a unit of systemd that calls boxctl has its credentials in (LoadCredential=).
const credentialFile = "boxctl-s3"

// maxCredentials bounds a file of them.
const maxCredentials = 64 << 10

// who asks is what was named, and nothing else: no file is looked for at the usual places, no server of the network is
// asked for roles, and no helper program is run.
func (o *BucketOptions) who() (aws.Credentials, error) {
	if o.Key != nil {
		return parseCredentials(o.Key)
	}
	if o.Credentials != "" {
		return readCredentials(o.Credentials)
	}
	key, secret := o.Getenv("AWS_ACCESS_KEY_ID"), o.Getenv("AWS_SECRET_ACCESS_KEY")
	switch {
	case key != "" && secret != "":
		return aws.Credentials{AccessKeyID: key, SecretAccessKey: secret, SessionToken: o.Getenv("AWS_SESSION_TOKEN"), Source: "environment"}, nil
	case key != "" || secret != "":
		return aws.Credentials{}, errors.New("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: set both or neither")
	}
	if dir := o.Getenv("CREDENTIALS_DIRECTORY"); dir != "" {
		creds, err := readCredentials(filepath.Join(dir, credentialFile))
		if !errors.Is(err, fs.ErrNotExist) {
			return creds, err
		}
	}
	return aws.Credentials{}, errors.New("no credentials for the bucket: use --credentials FILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY in the environment, or " + credentialFile + " among the credentials of systemd")
}

func readCredentials(path string) (aws.Credentials, error) {
	// O_NONBLOCK: a FIFO does not block.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return aws.Credentials{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return aws.Credentials{}, err
	}
	switch {
	case !info.Mode().IsRegular():
		return aws.Credentials{}, fmt.Errorf("%s is no file", path)
	case info.Mode().Perm()&0o077 != 0:
		return aws.Credentials{}, fmt.Errorf("%s has mode %04o: other users can access it; must be 0600", path, info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxCredentials+1))
	if err != nil {
		return aws.Credentials{}, err
	}
	creds, err := parseCredentials(data)
	if err != nil {
		return creds, fmt.Errorf("%s: %w", path, err)
	}
	return creds, nil
}

// parseCredentials reads a file as the tools of Amazon write it: what stands before any [section], and in [default]. What is
// wrong with it is said without a word of it.
func parseCredentials(data []byte) (creds aws.Credentials, err error) {
	if len(data) > maxCredentials {
		return creds, fmt.Errorf("more than %d bytes", maxCredentials)
	}
	fields := map[string]*string{"aws_access_key_id": &creds.AccessKeyID, "aws_secret_access_key": &creds.SecretAccessKey, "aws_session_token": &creds.SessionToken}
	ours, n := true, 0
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		n++
		text := strings.TrimSpace(string(line))
		switch {
		case text == "" || text[0] == '#' || text[0] == ';':
			continue
		case text[0] == '[':
			ours = text == "[default]"
			continue
		case !ours:
			continue
		}
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return aws.Credentials{}, fmt.Errorf("line %d is not KEY = VALUE", n)
		}
		to := fields[strings.ToLower(strings.TrimSpace(key))]
		value = strings.TrimSpace(value)
		switch {
		case to == nil:
		case *to != "":
			return aws.Credentials{}, fmt.Errorf("line %d repeats a key", n)
		case value == "" || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			return aws.Credentials{}, fmt.Errorf("line %d has no valid value", n)
		default:
			*to = value
		}
	}
	if creds.AccessKeyID == "" || creds.SecretAccessKey == "" {
		return aws.Credentials{}, errors.New("want aws_access_key_id = … and aws_secret_access_key = …, before any section or in [default]")
	}
	creds.Source = "file"
	return creds, nil
}
