#include "server/model_service.h"

#include "engine/base/status_macros.h"
#include "server/immediate_call.h"
#include "server/messages.h"
#include "server/request_fields.h"

namespace comoe::server {

grpc::ServerUnaryReactor* ModelService::GetModel(grpc::CallbackServerContext* context,
                                                 const v1::GetModelRequest* request,
                                                 v1::GetModelResponse* response) {
  return AnswerNow(context, Method::kGetModel, metrics_, [&]() -> absl::Status {
    COMOE_ASSIGN_OR_RETURN(const Backend* backend, state_.Loaded());
    COMOE_RETURN_IF_ERROR(CheckModel(request->name(), backend->model));
    ToMessage(*backend, response->mutable_model());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* ModelService::ListModels(grpc::CallbackServerContext* context,
                                                   const v1::ListModelsRequest* request,
                                                   v1::ListModelsResponse* response) {
  return AnswerNow(context, Method::kListModels, metrics_, [&]() -> absl::Status {
    if (!request->page_token().empty()) {
      return absl::InvalidArgumentError("page_token is none of this server's: all models fit one page");
    }
    COMOE_ASSIGN_OR_RETURN(const Backend* backend, state_.Loaded());
    ToMessage(*backend, response->add_models());
    return absl::OkStatus();
  });
}

}  // namespace comoe::server
