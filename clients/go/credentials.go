package palimpsest

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

// The environment that a client reads where an option is not given. The Python client has the same.
const (
	addressVariable     = "PALIMPSEST_ADDRESS"
	tokenVariable       = "PALIMPSEST_TOKEN"
	tokenFileVariable   = "PALIMPSEST_TOKEN_FILE"
	caVariable          = "PALIMPSEST_CA_FILE"
	certificateVariable = "PALIMPSEST_CERTIFICATE_FILE"
	keyVariable         = "PALIMPSEST_KEY_FILE"
	plainTokenVariable  = "PALIMPSEST_PLAIN_TOKEN"

	// Where `palimpsest up` listens.
	defaultAddress = "127.0.0.1:50051"
	defaultPort    = "50051"
	// Characters of a token: the service reads no more.
	maxTokenCharacters = 8192
	// Bytes of a file of certificates.
	maxFileBytes = 1 << 20
)

// parseAddress returns the address in gRPC's form, and whether it is reached by TLS. given is
// HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT or unix:PATH; empty: PALIMPSEST_ADDRESS, else
// where `palimpsest up` listens.
func parseAddress(given string) (string, bool, error) {
	if given == "" {
		given = os.Getenv(addressVariable)
	}
	if given == "" {
		given = defaultAddress
	}
	given = strings.TrimSpace(given)
	if strings.HasPrefix(given, "unix:") {
		return given, false, nil
	}
	scheme, address, found := strings.Cut(given, "://")
	if !found {
		scheme, address = "grpc", given
	}
	address = withPort(strings.TrimRight(address, "/"))
	host, port, err := net.SplitHostPort(address)
	if scheme != "grpc" && scheme != "grpcs" || err != nil || host == "" || port == "" || strings.ContainsAny(address, "/ ") {
		return "", false, fmt.Errorf("%q is no address of the service: give HOST:PORT, grpc://HOST:PORT, grpcs://HOST:PORT (TLS) or unix:PATH", given)
	}
	return address, scheme == "grpcs", nil
}

func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.TrimPrefix(address, "["), "]"), defaultPort)
}

// isLocal reports whether only this machine is reached at an address.
func isLocal(address string) bool {
	if strings.HasPrefix(address, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	found, err := netip.ParseAddr(host)
	return err == nil && found.Unmap().IsLoopback()
}

// access is what a client proves itself with, and whom it trusts.
type access struct {
	transport credentials.TransportCredentials
	token     func() (string, error)
	// A proxy is another machine: a token in plain text does not go through one.
	withoutProxy bool
}

func newAccess(given *settings, address string, secure bool) (*access, error) {
	made := &access{transport: given.transport}
	var err error
	if made.token, err = tokenOf(given); err != nil {
		return nil, err
	}
	named := given.caFile != "" || given.certificateFile != "" || given.keyFile != ""
	switch {
	case made.transport != nil && named:
		return nil, errors.New("certificate files are not used, since there are credentials already")
	case made.transport != nil:
		return made, nil
	case secure:
		made.transport, err = transportOf(given)
		return made, err
	case named:
		return nil, fmt.Errorf("certificate files are not used, since %s is without TLS: use grpcs://HOST:PORT", address)
	}
	allowed := given.plainToken || isSet(plainTokenVariable)
	if made.token != nil && !allowed {
		if !isLocal(address) {
			return nil, fmt.Errorf("the token is not sent to %s without TLS: connect to grpcs://HOST:PORT, or allow it by WithPlainToken (%s=true)", address, plainTokenVariable)
		}
		made.withoutProxy = true
	}
	return made, nil
}

func isSet(variable string) bool {
	switch strings.ToLower(os.Getenv(variable)) {
	case "1", "true", "yes", "on":
		return true
	}
	return false
}

// tokenOf returns what returns the token of each call; nil without one.
func tokenOf(given *settings) (func() (string, error), error) {
	text, path := given.token, given.tokenFile
	switch {
	case given.tokenSource != nil:
		return func() (string, error) {
			token, err := given.tokenSource()
			if err != nil {
				return "", err
			}
			return checkedToken(token)
		}, nil
	case text == "" && path == "":
		text, path = os.Getenv(tokenVariable), os.Getenv(tokenFileVariable)
		if text != "" && path != "" {
			return nil, fmt.Errorf("%s and %s are both set: set one of them", tokenVariable, tokenFileVariable)
		}
	}
	if text != "" {
		token, err := checkedToken(text)
		return func() (string, error) { return token, nil }, err
	}
	if path != "" {
		file := &tokenFile{path: path}
		_, err := file.read()
		return file.read, err
	}
	return nil, nil
}

// unusableToken is a token that cannot be sent; the message has nothing of it.
type unusableToken string

func (u unusableToken) Error() string { return string(u) }

func checkedToken(token string) (string, error) {
	token = strings.TrimSpace(token)
	switch {
	case token == "":
		return "", unusableToken("the token is empty: leave it out where the service needs none")
	case len(token) > maxTokenCharacters:
		return "", unusableToken(fmt.Sprintf("the token has more than %d characters", maxTokenCharacters))
	}
	for _, one := range []byte(token) {
		if one <= ' ' || one > '~' {
			return "", unusableToken("the token has characters that no token has: give it as it was issued")
		}
	}
	return token, nil
}

// noToken returns the error of a call that has no token. The words of a program's own function may
// have anything in them, and are left out.
func noToken(err error) error {
	said := fmt.Sprintf("%T", err)
	if unusable := (unusableToken)(""); errors.As(err, &unusable) {
		said = string(unusable)
	}
	return status.Errorf(codes.Unauthenticated, "there is no token for this call: %s", said)
}

// tokenFile is a file with a token, which is read again when it has changed.
type tokenFile struct {
	path  string
	mutex sync.Mutex
	size  int64
	at    time.Time
	token string
}

func (f *tokenFile) read() (string, error) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	found, err := os.Stat(f.path)
	if err != nil {
		return "", unusableToken(unreadable(f.path, "the token", err))
	}
	if f.token != "" && found.Size() == f.size && found.ModTime().Equal(f.at) {
		return f.token, nil
	}
	if found.Size() > maxTokenCharacters+100 {
		return "", unusableToken(fmt.Sprintf("the token has more than %d characters", maxTokenCharacters))
	}
	content, err := os.ReadFile(f.path)
	if err != nil {
		return "", unusableToken(unreadable(f.path, "the token", err))
	}
	token, err := checkedToken(string(content))
	if err != nil {
		return "", err
	}
	f.token, f.size, f.at = token, found.Size(), found.ModTime()
	return token, nil
}

// transportOf returns the credentials of TLS.
func transportOf(given *settings) (credentials.TransportCredentials, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	caFile := orVariable(given.caFile, caVariable)
	if caFile != "" {
		roots, err := pemFile(caFile, caVariable)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(roots) {
			return nil, fmt.Errorf("%s (%s) holds no certificate that can be read: name a PEM file of the roots to trust", caFile, caVariable)
		}
	}
	certificateFile, keyFile := orVariable(given.certificateFile, certificateVariable), orVariable(given.keyFile, keyVariable)
	if (certificateFile == "") != (keyFile == "") {
		return nil, fmt.Errorf("a client's certificate needs its key: name both, %s and %s", certificateVariable, keyVariable)
	}
	if certificateFile == "" {
		return credentials.NewTLS(config), nil
	}
	certificate, err := pemFile(certificateFile, certificateVariable)
	if err != nil {
		return nil, err
	}
	key, err := pemFile(keyFile, keyVariable)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s (%s) and %s (%s) are no certificate and its key: write the two that belong together, as PEM, the key without a passphrase", certificateFile, certificateVariable, keyFile, keyVariable)
	}
	config.Certificates = []tls.Certificate{pair}
	return credentials.NewTLS(config), nil
}

func orVariable(given, variable string) string {
	if given != "" {
		return given
	}
	return os.Getenv(variable)
}

func pemFile(path, variable string) ([]byte, error) {
	found, err := os.Stat(path)
	if err != nil {
		return nil, errors.New(unreadable(path, variable, err))
	}
	if found.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s (%s) is no PEM file of at most 1 MiB", path, variable)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.New(unreadable(path, variable, err))
	}
	if !bytes.Contains(content, []byte("-----BEGIN ")) {
		return nil, fmt.Errorf("%s (%s) is no PEM file of at most 1 MiB", path, variable)
	}
	return content, nil
}

func unreadable(path, what string, err error) string {
	cause := err.Error()
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		cause = failed.Err.Error()
	}
	return fmt.Sprintf("cannot read %s (%s): %s", path, what, cause)
}
