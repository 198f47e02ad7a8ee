# Tests of a server over real channels, apart from those of the core.

recurve_test(e2e_api_keys_test SRCS e2e/api_keys_test.cc DEPS recurve_e2e_testing LABELS e2e)
recurve_test(e2e_bench_test SRCS e2e/bench_test.cc
             DEPS recurve_e2e_testing recurve_client_cli nlohmann_json::nlohmann_json LABELS e2e)
recurve_test(e2e_encoding_test SRCS e2e/encoding_test.cc
             DEPS recurve_e2e_testing recurve_http_testing nlohmann_json::nlohmann_json
             LABELS e2e)
recurve_test(e2e_golden_test SRCS e2e/golden_models_test.cc e2e/golden_test.cc DEPS recurve_e2e_testing LABELS e2e)
recurve_test(e2e_http_test
             SRCS e2e/completion_call_test.cc e2e/http_echo_test.cc e2e/http_keys_test.cc e2e/http_protocol_test.cc e2e/http_reader_test.cc e2e/http_server_test.cc
                  e2e/http_paths_test.cc e2e/http_request_id_test.cc e2e/http_states_test.cc e2e/http_stream_test.cc e2e/http_test.cc e2e/http_tokenize_test.cc
                  e2e/prefix_cache_test.cc
             DEPS recurve_e2e_testing recurve_http_testing nlohmann_json::nlohmann_json
             APART e2e/prefix_cache_test.cc
             LABELS e2e)
# RECURVE_FLOOD_SECONDS=30 for the full length. Not with ThreadSanitizer, whose own
# memory grows.
if(NOT RECURVE_SANITIZER STREQUAL "thread")
  recurve_test(e2e_flood_test SRCS e2e/flood_test.cc
               DEPS recurve_e2e_testing recurve_http_testing OpenSSL::SSL LABELS e2e)
  add_dependencies(e2e_flood_test recurve-server)
endif()
recurve_test(e2e_grpc_connections_test
             SRCS e2e/grpc_connections_test.cc e2e/grpc_reader_test.cc e2e/listening_sockets_test.cc
             DEPS recurve_e2e_testing recurve_http_testing LABELS e2e)
add_dependencies(e2e_grpc_connections_test recurve-server)
recurve_test(e2e_strangers_test SRCS e2e/strangers_test.cc
             DEPS recurve_e2e_testing recurve_http_testing OpenSSL::SSL LABELS e2e)
recurve_test(e2e_grpc_transport_test
             SRCS e2e/grpc_limits_test.cc e2e/grpc_times_test.cc e2e/grpc_tls_transport_test.cc
                  e2e/grpc_transport_test.cc e2e/reflection_test.cc
             DEPS recurve_e2e_testing recurve_http_testing OpenSSL::SSL
             APART e2e/grpc_times_test.cc e2e/grpc_transport_test.cc LABELS e2e)
# RECURVE_LOAD_SECONDS=600 for ten minutes. Not with ThreadSanitizer, whose own
# memory grows.
if(NOT RECURVE_SANITIZER STREQUAL "thread")
  recurve_test(e2e_random_load_test SRCS e2e/random_load_test.cc
               DEPS recurve_e2e_testing recurve_http_testing LABELS e2e)
  add_dependencies(e2e_random_load_test recurve-server)
endif()
recurve_test(e2e_load_test SRCS e2e/load_test.cc DEPS recurve_e2e_testing LABELS e2e
             TIMEOUT 900)
# The longest, so that where two tests run at a time it does not end alone.
set_tests_properties(e2e_load_test PROPERTIES COST 100)
recurve_test(e2e_process_test
             SRCS e2e/client_process_test.cc e2e/hung_log_test.cc e2e/process_test.cc e2e/startup_test.cc
             DEPS recurve_e2e_testing recurve_http_testing nlohmann_json::nlohmann_json
             APART e2e/process_test.cc e2e/startup_test.cc LABELS e2e)
add_dependencies(e2e_process_test recurve-server recurve_client)
recurve_test(e2e_vllm_test SRCS e2e/vllm_test.cc
             DEPS recurve_e2e_testing recurve_vllm_proto LABELS e2e)
# Skipped, with a line that says why, without grpcio, protobuf or pytest. Not with
# ThreadSanitizer, where the server takes minutes for what tests a client.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER STREQUAL "thread")
  add_test(NAME python_client_test
    COMMAND ${RECURVE_PYTHON} ${PROJECT_SOURCE_DIR}/client/python/tests/run.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(python_client_test PROPERTIES
    LABELS e2e TIMEOUT 900 SKIP_RETURN_CODE 77)
  recurve_sanitizer_environment(python_client_test)
endif()
# Skipped, with a line that says why, without the package openai.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER STREQUAL "thread")
  add_test(NAME openai_client_test
    COMMAND ${RECURVE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/openai_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(openai_client_test PROPERTIES
    LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
  recurve_sanitizer_environment(openai_client_test)
endif()
# Skipped, with a line that says why, without lm_eval, transformers or torch. It is for the
# scores, not for what a sanitizer finds.
if(RECURVE_TOOLS_PYTHON AND NOT RECURVE_SANITIZER)
  add_test(NAME lm_eval_test
    COMMAND ${RECURVE_TOOLS_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/lm_eval_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(lm_eval_test PROPERTIES LABELS e2e TIMEOUT 900 SKIP_RETURN_CODE 77)
endif()
# Skipped, with a line that says why, without Chromium.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER)
  add_test(NAME page_test
    COMMAND ${RECURVE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/page_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(page_test PROPERTIES
    LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
endif()
# Skips, with a line each, what nginx, HAProxy, requests, httpx and openai are for
# where they are missing.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER STREQUAL "thread")
  add_test(NAME proxies_test
    COMMAND ${RECURVE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/proxies_test.py
            $<TARGET_FILE:recurve-server> $<TARGET_FILE:recurve_client>)
  set_tests_properties(proxies_test PROPERTIES
    LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
  recurve_sanitizer_environment(proxies_test)
endif()
# Skipped, with a line that says why, without the packages openai, langchain-openai, httpx
# or jinja2.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER STREQUAL "thread")
  add_test(NAME chat_client_test
    COMMAND ${RECURVE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/chat_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(chat_client_test PROPERTIES
    LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
  recurve_sanitizer_environment(chat_client_test)
endif()
# Skipped, with a line that says why, without the packages smg, smg-grpc-proto, grpcio or
# openai.
if(RECURVE_PYTHON AND NOT RECURVE_SANITIZER STREQUAL "thread")
  add_test(NAME smg_gateway_test
    COMMAND ${RECURVE_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/smg_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(smg_gateway_test PROPERTIES
    LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)
  recurve_sanitizer_environment(smg_gateway_test)
endif()
# Skipped, with a line that says why, without guidellm (requirements-tools.txt).
if(RECURVE_TOOLS_PYTHON AND NOT RECURVE_SANITIZER)
  add_test(NAME guidellm_test
    COMMAND ${RECURVE_TOOLS_PYTHON} ${CMAKE_CURRENT_SOURCE_DIR}/e2e/guidellm_test.py
            $<TARGET_FILE:recurve-server>)
  set_tests_properties(guidellm_test PROPERTIES
    LABELS e2e TIMEOUT 1800 SKIP_RETURN_CODE 77)
endif()
# For tests/e2e/overload.py, which takes minutes and is run by hand.
recurve_binary(recurve-overload-client
  SRCS e2e/overload_client.cc
  DEPS recurve_client_lib recurve_base CLI11::CLI11 nlohmann_json::nlohmann_json)
set_target_properties(recurve-overload-client PROPERTIES EXCLUDE_FROM_ALL TRUE)
recurve_test(e2e_status_test SRCS e2e/status_test.cc DEPS recurve_e2e_testing LABELS e2e)
recurve_test(e2e_tls_test SRCS e2e/tls_test.cc
             DEPS recurve_e2e_testing recurve_http_testing LABELS e2e)
