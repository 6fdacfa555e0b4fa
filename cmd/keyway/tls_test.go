package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"keyway/config"
	"keyway/envoy"
	"keyway/envoy/envoytest"
	"keyway/store/storetest"
)

// authority signs certificates; what it writes lies in one folder for each name.
type authority struct {
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{folder: t.TempDir(), serial: 1}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = a.sign(t, filepath.Join(a.folder, "ca"), a.cert)
	return a
}

// sign writes template, signed, and a new key of it into folder, the key first, each
// by a move as whoever renews certificates does it.
func (a *authority) sign(t *testing.T, folder string, template *x509.Certificate) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(folder, 0o700))
	for _, file := range []struct {
		name  string
		block pem.Block
	}{{"tls.key", pem.Block{Type: "PRIVATE KEY", Bytes: raw}}, {"tls.crt", pem.Block{Type: "CERTIFICATE", Bytes: der}}} {
		next := filepath.Join(folder, file.name+".next")
		require.NoError(t, os.WriteFile(next, pem.EncodeToMemory(&file.block), 0o600))
		require.NoError(t, os.Rename(next, filepath.Join(folder, file.name)))
	}
	return key
}

// issue makes a certificate for name, which takes the place of one that lies under as.
func (a *authority) issue(t *testing.T, as, name string) tlsFlags {
	t.Helper()
	a.serial++
	a.sign(t, filepath.Join(a.folder, as), &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
	return tlsFlags{
		Cert: filepath.Join(a.folder, as, "tls.crt"), Key: filepath.Join(a.folder, as, "tls.key"), CA: filepath.Join(a.folder, "ca", "tls.crt"),
	}
}

func (f tlsFlags) args() []string {
	return []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", loopback+":0")
	require.NoError(t, err)
	defer ln.Close()
	return ln.Addr().String()
}

const (
	nativeKey    = "sk-that-nobody-else-may-see"
	nativeRegion = `region: demo
listener: {port: %s}
providers: [{name: p, dialects: [openai], base_url: "http://127.0.0.1:9/v1"}]
channels: [{name: a, egress: native, provider: p, secret: "file:%s", models: [{name: m}]}]
models: [{name: m, prices: [{version: "1", input: 1, output: 2}]}]
`
)

// nativeConfig writes the configuration of a region with a native channel, whose
// clients are served at address.
func nativeConfig(t *testing.T, address string) (file string) {
	t.Helper()
	folder := t.TempDir()
	sk, file := filepath.Join(folder, "sk"), filepath.Join(folder, "config.yaml")
	require.NoError(t, os.WriteFile(sk, []byte(nativeKey), 0o600))
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, nativeRegion, port, sk), 0o600))
	return file
}

// runPlane runs xds with a native channel until the test ends, with further arguments.
func runPlane(t *testing.T, address string, args ...string) (metrics string) {
	t.Helper()
	metrics = freeAddress(t)
	file := nativeConfig(t, freeAddress(t))
	runService(t, metrics, append([]string{"xds", "--config", file, "--listen", address}, args...)...)
	return metrics
}

// runService runs a service until the test ends, from when it is ready.
func runService(t *testing.T, metrics string, args ...string) {
	t.Helper()
	root := newRoot(nil)
	root.SetArgs(append(args, "--metrics", metrics, "--log-level", "error"))
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	eventuallyGet(t, "http://"+metrics+"/readyz", func(string) bool { return true })
}

// eventuallyGet waits until a page answers 200 with what it should.
func eventuallyGet(t *testing.T, url string, good func(body string) bool) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		resp, err := http.Get(url)
		if !assert.NoError(c, err) {
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		assert.NoError(c, err)
		assert.True(c, resp.StatusCode == http.StatusOK && good(string(body)), "%s: %s", resp.Status, body)
	}, 30*time.Second, 50*time.Millisecond)
}

// askForSecret asks xds for the SK of the native channel, as an Envoy does.
func askForSecret(t *testing.T, address string, creds credentials.TransportCredentials) (string, error) {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		return "", err
	}
	// What sending lacks is told by receiving.
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "envoy-test"}, TypeUrl: resource.SecretType, ResourceNamesSubscribe: []string{envoy.SecretOf("a")},
	})
	resp, err := stream.Recv()
	return resp.String(), err
}

// clientCreds are those of a client with the files of f.
func clientCreds(t *testing.T, f tlsFlags) credentials.TransportCredentials {
	t.Helper()
	creds, stop, err := f.client("127.0.0.1:1")
	require.NoError(t, err)
	t.Cleanup(stop)
	return creds
}

// Whoever cannot show a certificate of ours, for a name of ours, is told no secret.
func TestOnlyKnownClientsGetSecrets(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	server, address := ours.issue(t, "xds", "xds"), freeAddress(t)
	runPlane(t, address, append(server.args(), "--tls-clients", "envoy,authz")...)

	told, err := askForSecret(t, address, clientCreds(t, ours.issue(t, "envoy", "envoy")))
	require.NoError(t, err)
	require.Contains(t, told, nativeKey)

	roots := x509.NewCertPool()
	roots.AddCert(parsed(t, server.CA))
	stranger := theirs.issue(t, "envoy", "envoy")
	stranger.CA = server.CA
	for name, creds := range map[string]credentials.TransportCredentials{
		"plain text":               insecure.NewCredentials(),
		"no certificate":           credentials.NewTLS(&tls.Config{RootCAs: roots}),
		"another authority":        clientCreds(t, stranger),
		"a name that is not known": clientCreds(t, ours.issue(t, "visitor", "visitor")),
	} {
		told, err := askForSecret(t, address, creds)
		assert.Error(t, err, name)
		assert.NotContains(t, told, nativeKey, name)
	}
	// The other way around: a client does not talk to a server of another authority.
	wary := ours.issue(t, "wary", "authz")
	wary.CA = theirs.issue(t, "x", "x").CA
	_, err = askForSecret(t, address, clientCreds(t, wary))
	require.ErrorContains(t, err, "unknown authority")
}

func parsed(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return cert
}

// A certificate that is renewed counts for the next connection, without a restart:
// that of xds, and that of a service.
func TestCertificatesAreFollowed(t *testing.T) {
	t.Parallel()
	ours, address := newAuthority(t), freeAddress(t)
	server := ours.issue(t, "xds", "xds")
	runPlane(t, address, append(server.args(), "--tls-clients", "authz")...)
	service := ours.issue(t, "service", "not-yet")
	holder, ctx, stop := new(config.Holder), context.Context(nil), context.CancelFunc(nil)
	ctx, stop = context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		f := configFlags{XDS: address, Region: "demo", Node: "authz-0", TLS: service}
		ended <- f.subscribe(ctx, &process{logger: slog.New(slog.DiscardHandler)}, holder)
	}()
	time.Sleep(200 * time.Millisecond) // time in which it is refused
	require.Nil(t, holder.Load())
	ours.issue(t, "service", "authz")
	require.Eventually(t, func() bool { return holder.Load() != nil }, 30*time.Second, 20*time.Millisecond)
	stop()
	require.NoError(t, <-ended)

	pair, err := tls.LoadX509KeyPair(service.Cert, service.Key)
	require.NoError(t, err)
	// served is the number of the server's certificate; 0 when it cannot be had.
	served := func() int64 {
		conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}})
		if err != nil {
			return 0
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	before := served()
	require.NotZero(t, before)
	ours.issue(t, "xds", "xds")
	require.Eventually(t, func() bool { return served() > before }, 30*time.Second, 20*time.Millisecond)
}

// The real Envoy gets secrets with a certificate that xds knows, and nothing with
// another; it follows its files, so that one replaces the other without a restart.
// By the same certificate it calls the services.
func TestEnvoyOverTLS(t *testing.T) {
	t.Parallel()
	binary, store := envoytest.FindEnvoy(t), storetest.Start(t)
	ours, clients, admin := newAuthority(t), freeAddress(t), freeAddress(t)
	address := map[string]string{}
	for _, name := range []string{"xds", "authz", "extproc"} {
		address[name] = freeAddress(t)
	}
	metrics := freeAddress(t)
	runService(t, metrics, append([]string{
		"xds", "--config", nativeConfig(t, clients), "--listen", address["xds"], "--tls-clients", "envoy,authz,extproc",
	}, ours.issue(t, "xds", "xds").args()...)...)
	for _, name := range []string{"authz", "extproc"} {
		runService(t, freeAddress(t), append([]string{
			name, "--listen", address[name], "--xds", address["xds"], "--tls-clients", "envoy", "--store", store.URL,
			"--journal", filepath.Join(t.TempDir(), "journal"),
		}, ours.issue(t, name, name).args()...)...)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	_, errs, status := keyway(t, append([]string{
		"bootstrap", "--node", "envoy-0", "--xds", address["xds"], "--authz", address["authz"], "--extproc", address["extproc"], "--admin", admin, "--out", file,
	}, ours.issue(t, "envoy", "nobody").args()...)...)
	require.Zero(t, status, errs)
	var log bytes.Buffer
	// Not bound to the test's context: the process is ended in order below.
	cmd := exec.Command(binary, "--config-path", file, "--reject-unknown-dynamic-fields", "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning")
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("envoy:\n%s", log.String())
		}
	})
	secrets := "http://" + admin + "/config_dump?resource=dynamic_active_secrets"
	eventuallyGet(t, "http://"+admin+"/stats?filter=keyway_xds.ssl.handshake", func(body string) bool {
		var n int
		_, err := fmt.Sscanf(body, "cluster.keyway_xds.ssl.handshake: %d", &n)
		return err == nil && n >= 2 // it was refused once at least
	})
	eventuallyGet(t, secrets, func(body string) bool { return !strings.Contains(body, envoy.SecretOf("a")) })
	eventuallyGet(t, "http://"+metrics+"/status", func(body string) bool { return !strings.Contains(body, "envoy-0") })

	ours.issue(t, "envoy", "envoy")
	eventuallyGet(t, secrets, func(body string) bool { return strings.Contains(body, envoy.SecretOf("a")) })
	eventuallyGet(t, "http://"+metrics+"/status", func(body string) bool { return strings.Contains(body, "envoy-0") })
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		resp, err := http.Post("http://"+clients+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","messages":[]}`))
		if !assert.NoError(c, err) {
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		assert.NoError(c, err)
		// Without authz it would be a 503.
		assert.Equal(c, http.StatusUnauthorized, resp.StatusCode, "%s", body)
	}, 30*time.Second, 50*time.Millisecond)
}

// Without TLS secrets are served on this machine alone, and the refusal says what to do.
func TestSecretsNeedAPrivateListener(t *testing.T) {
	t.Parallel()
	file := nativeConfig(t, loopback+":1234")
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		_, errs, status := keyway(t, "xds", "--config", file, "--listen", address, "--metrics", loopback+":0")
		require.Equal(t, 1, status, address)
		require.Contains(t, errs, "egress: native (a)")
		require.Contains(t, errs, "--tls-cert, --tls-key and --tls-ca")
	}
	address := unixPrefix + filepath.Join(t.TempDir(), "xds.sock")
	runPlane(t, address)
	told, err := askForSecret(t, address, insecure.NewCredentials())
	require.NoError(t, err)
	require.Contains(t, told, nativeKey)
	address = freeAddress(t)
	runPlane(t, address)
	told, err = askForSecret(t, address, insecure.NewCredentials())
	require.NoError(t, err)
	require.Contains(t, told, nativeKey)
}

func TestTLSFlags(t *testing.T) {
	t.Parallel()
	ours := newAuthority(t)
	good := ours.issue(t, "a", "a")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for says, f := range map[string]tlsFlags{
		"go together":                       {Cert: good.Cert, Key: good.Key},
		"--tls-clients is given without":    {Clients: []string{"a"}},
		"read --tls-cert and --tls-key":     {Cert: good.Cert, Key: empty, CA: good.CA},
		"read --tls-ca":                     {Cert: good.Cert, Key: good.Key, CA: filepath.Join(empty, "none")},
		"read --tls-ca: " + empty + " has ": {Cert: good.Cert, Key: good.Key, CA: empty},
	} {
		_, _, err := f.server("0.0.0.0:1")
		require.ErrorContains(t, err, says)
		_, _, err = f.client("127.0.0.1:1")
		require.ErrorContains(t, err, says)
	}
	creds, _, err := good.server("unix:/run/x.sock")
	require.NoError(t, err)
	require.Nil(t, creds, "whoever may open a socket is the file system's to say")
	_, errs, status := keyway(t, append([]string{"bootstrap"}, good.args()...)...)
	require.Equal(t, 1, status)
	require.Contains(t, errs, "--out")
}
