package recovery;

import java.io.IOException;
import java.lang.reflect.Field;
import java.net.InetAddress;
import java.net.Socket;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import javax.net.SocketFactory;
import py4j.CallbackClient;
import py4j.DefaultGatewayServerListener;
import py4j.GatewayServer;
import py4j.Py4JServerConnection;

/** Makes the JVM send to Python without delay: see prompt_sockets.py. */
public class PromptSockets extends DefaultGatewayServerListener {
    public PromptSockets(Object given) throws Exception {
        GatewayServer server = (GatewayServer) given;
        server.addListener(this);
        // A copy: other threads of Python connect and leave meanwhile.
        List begun = new ArrayList((List) field(GatewayServer.class, "connections").get(server));
        for (Iterator each = begun.iterator(); each.hasNext();) {
            connectionStarted((Py4JServerConnection) each.next());
        }
        CallbackClient client = (CallbackClient) server.getCallbackClient();
        Field factory = field(CallbackClient.class, "socketFactory");
        try {
            factory.set(client, new PromptFactory((SocketFactory) factory.get(client)));
        } catch (IllegalAccessException error) {
            // A Java that does not let final fields be set: questions to Python stay as slow as they are.
        }
    }

    public void connectionStarted(Py4JServerConnection connection) {
        try {
            connection.getSocket().setTcpNoDelay(true);
        } catch (IOException error) {
            // The connection ends, or is slower.
        }
    }

    private static Field field(Class owner, String name) throws Exception {
        Field found = owner.getDeclaredField(name);
        found.setAccessible(true);
        return found;
    }
}

class PromptFactory extends SocketFactory {
    private final SocketFactory inner;

    PromptFactory(SocketFactory inner) {
        this.inner = inner;
    }

    private static Socket prompt(Socket socket) throws IOException {
        socket.setTcpNoDelay(true);
        return socket;
    }

    public Socket createSocket(InetAddress host, int port) throws IOException {
        return prompt(inner.createSocket(host, port));
    }

    public Socket createSocket(InetAddress host, int port, InetAddress from, int local) throws IOException {
        return prompt(inner.createSocket(host, port, from, local));
    }

    public Socket createSocket(String host, int port) throws IOException {
        return prompt(inner.createSocket(host, port));
    }

    public Socket createSocket(String host, int port, InetAddress from, int local) throws IOException {
        return prompt(inner.createSocket(host, port, from, local));
    }
}
